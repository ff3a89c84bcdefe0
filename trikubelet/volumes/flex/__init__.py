"""Volumes of programs that are put into a folder: flexVolume (kubelet: `pkg/volume/flexvolume`).

The story of a driver: `discovery` finds its program, asks it what it can (`init`), and makes a kind of volume of it
under the driver's own name. For a volume the kind runs the program with a command, paths and options (`driver`), and
reads from its answer whether it was done, could not be done, or is not the program's business (`answers`): then the
kind does it itself. Attaching and detaching are a controller's business.

    <volumePluginDir>/<vendor>~<driver>/<driver>                             the program of `<vendor>/<driver>`
    pods/<uid>/volumes/<vendor>~<driver>/<name>                              mounted for a pod
    plugins/kubernetes.io/flexvolume/<vendor>/<driver>/mounts/<name>         mounted for the node
"""
