"""Where desired pods come from: files, a URL, the API server; and the merge of all into changes for the sync loop."""
