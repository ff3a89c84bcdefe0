"""Which pods may use an image that is already on the node (KEP-2535, kubelet: `pullmanager`).

An image that was pulled with one pod's secret must not be open to every pod of the node only because it is there now.
So each pull leaves a record. The story of one: an *intent* is written before the runtime is asked; when the image came,
a *record* tells which credentials brought it, and the intent goes. A pod that finds the image present may use it when
the record says that all may, or when it has one of the credentials that are written there. Else the image is pulled
again with what the pod has, and the registry decides. An intent that was left behind by an agent that died means that
it is not known how the image came: it counts as pulled, with no credentials.

`model` has the records, and decides by the node's policy whether they are asked at all and what they allow; `store`
keeps the files, in the kubelet's format, and `records` puts these together.
"""
