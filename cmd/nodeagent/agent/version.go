package agent

// Version is the version of the build, set by the linker.
var Version = "dev"
