package inspect

import (
	"context"
	"strconv"
	"strings"

	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
)

// sourceAnnotation is the source from which kubelet got the pod: api, file or http. kubelet copies the pod's
// annotations to the sandbox.
// https://kubernetes.io/docs/reference/labels-annotations-taints/#kubernetes-io-config-source
const sourceAnnotation = "kubernetes.io/config.source"

// mirrorAnnotation is on the pods that kubelet creates in the apiserver to show static pods: its value is the UID on
// the node.
const mirrorAnnotation = "kubernetes.io/config.mirror"

func sandboxSpec() KindSpec {
	return KindSpec{
		Kind: Sandbox, List: listSandboxes, FromRuntime: true,
		What: "a pod sandbox of the runtime (CRI), in any state",
		Harm: "its name, address and cgroup stay taken: a new pod of that name waits in ContainerCreating",
	}
}

// listSandboxes lists CRI pod sandboxes in every state, all attempts.
func listSandboxes(_ context.Context, scan *hostscan.Scan) ([]Object, error) {
	sandboxes, err := scan.Sandboxes()
	if err != nil {
		return nil, err
	}
	objects := make([]Object, 0, len(sandboxes))
	for _, s := range sandboxes {
		objects = append(objects, Object{
			Kind:      Sandbox,
			ID:        s.GetId(),
			Pod:       podOfSandbox(s),
			SandboxID: s.GetId(),
			Identity:  Identity{"id": s.GetId(), "created": strconv.FormatInt(s.GetCreatedAt(), 10)},
			Facts: Facts(
				"state", sandboxState(s.GetState()),
				"attempt", strconv.FormatUint(uint64(s.GetMetadata().GetAttempt()), 10),
				"source", s.GetAnnotations()[sourceAnnotation],
				"handler", s.GetRuntimeHandler(),
			),
			Foreign: ForeignUID(s.GetMetadata().GetUid()),
		})
	}
	return objects, nil
}

// ForeignUID returns why an object with this UID does not belong to kubelet.
func ForeignUID(uid string) string {
	switch {
	case uid == "":
		return "has no pod UID"
	case !host.IsPodUID(uid):
		return "its UID is not one that kubelet assigns: created by hand"
	}
	return ""
}

// sandboxState returns READY or NOTREADY.
func sandboxState(state cri.PodSandboxState) string {
	return strings.TrimPrefix(state.String(), "SANDBOX_")
}

// Facts returns a map of names and values, without empty values.
func Facts(pairs ...string) map[string]string {
	made := make(map[string]string, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			made[pairs[i]] = pairs[i+1]
		}
	}
	return made
}

// runtimeDirectorySpecs describe containerd's directories of a container and of a sandbox. The listers are in
// pkg/inspect/listers.
func runtimeDirectorySpecs() (rootfs, sandboxDirectory KindSpec) {
	rootfs = KindSpec{
		Kind: Rootfs, GoneFrom: ofSandbox, OptIn: true,
		What: "a container's bundle, `<containerd state>/io.containerd.runtime.v2.task/k8s.io/<id>`, with its root " +
			"filesystem mounted on `rootfs`",
		Harm: "keeps the snapshot, and the shim that waits for it; thousands of them slow down every mount",
	}
	sandboxDirectory = KindSpec{
		Kind: SandboxDirectory, GoneFrom: ofSandbox, OptIn: true,
		What: "a sandbox's directory of containerd's CRI plugin, `io.containerd.grpc.v1.cri/sandboxes/<id>` below its root " +
			"or state, with `shm` mounted",
		Harm: "memory, as long as files are in its shm",
	}
	return rootfs, sandboxDirectory
}
