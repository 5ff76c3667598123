package cri

import (
	"encoding/json"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Shim is the information in the command line of a container's shim:
//
//	/usr/bin/containerd-shim-runc-v2 -namespace k8s.io -id 0c3f… -address /run/containerd/containerd.sock
//	/usr/bin/conmon -b … -c 9d21… --exit-dir /var/run/crio/exits …
//
// https://github.com/containerd/containerd/blob/main/core/runtime/v2/README.md (one shim for each pod, its -id is the
// sandbox's).
type Shim struct {
	ID   string // of its sandbox or container; empty: not a shim of Kubernetes
	Runc bool   // runc's shim must have a child; a virtual machine may live inside its shim

	Address string // the socket of its containerd; empty for conmon
}

// IsShim reports whether the command of a process, as in /proc/PID/stat, is that of a shim of any engine.
func IsShim(comm string) bool { return comm == "containerd-shim" || comm == "conmon" }

const maxShimID = 128 // bytes

// ParseShim parses the command line of one of Kubernetes' shims: of containerd in the namespace of the CRI plugin, and
// of CRI-O without its helpers for exec.
func ParseShim(args []string) Shim {
	if len(args) == 0 {
		return Shim{}
	}
	value := func(name string) string {
		if i := slices.Index(args, name); i > 0 && i+1 < len(args) {
			return args[i+1]
		}
		return ""
	}
	program := args[0][strings.LastIndexByte(args[0], '/')+1:]
	id := ""
	switch {
	case strings.HasPrefix(program, "containerd-shim") && value("-namespace") == Namespace:
		id = value("-id")
	case program == "conmon" && strings.Contains(value("--exit-dir"), "/crio/") && !slices.Contains(args, "-e") &&
		!slices.Contains(args, "--exec-attach"):
		id = value("-c")
	}
	if len(id) > maxShimID || strings.ContainsFunc(id, func(r rune) bool { return r <= ' ' || r >= 0x7f }) {
		id = ""
	}
	return Shim{ID: id, Runc: program == "containerd-shim-runc-v2", Address: value("-address")}
}

// Annotations that the CRI plugin adds to the specification of each container (internal/cri/annotations).
const (
	SandboxIDAnnotation        = "io.kubernetes.cri.sandbox-id"
	SandboxUIDAnnotation       = "io.kubernetes.cri.sandbox-uid" // of the pod
	SandboxNameAnnotation      = "io.kubernetes.cri.sandbox-name"
	SandboxNamespaceAnnotation = "io.kubernetes.cri.sandbox-namespace"
)

// SpecAnnotations returns the annotations of the specification in a bundle, a config.json of some 15 KB. It trusts only
// a file that root alone can write, and returns nil for any other, or if the file cannot be read.
func SpecAnnotations(files host.Files, bundle string) map[string]string {
	var spec struct {
		Annotations map[string]string `json:"annotations"`
	}
	data, err := files.ReadOwned(path.Join(bundle, "config.json"))
	if err != nil || json.Unmarshal(data, &spec) != nil {
		return nil
	}
	return spec.Annotations
}
