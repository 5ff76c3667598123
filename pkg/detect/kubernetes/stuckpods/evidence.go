package stuckpods

import (
	"context"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// podEvidence holds the facts that one run reads about late pods: each part once, and only if a pod needs it. A failed
// read makes the stage less precise, and is no error: the pod is late in any case.
type podEvidence struct {
	host     *host.Host
	settings Settings

	asked           bool
	askErr          error
	sandboxes       []*cri.PodSandbox
	containers      []*cri.Container
	networkNotReady string // the runtime's message if its network is not ready

	mounts     []mount.Mount
	cgroups    map[string][]cgroup.PodCgroup // by pod UID
	cgroupsErr error
}

// runtimeTimeout bounds all calls to the runtime together.
const runtimeTimeout = 5 * time.Second

// Stage returns the step for which a pod waits that starts, or ends, and the evidence for it. It makes no request to the apiserver.
func Stage(ctx context.Context, h *host.Host, pod *corev1.Pod) (is podstate.Stage, text string) {
	e := &podEvidence{host: h}
	s := e.stage(ctx, latePod{pod: pod, ending: pod.DeletionTimestamp != nil})
	return s.stage, s.text
}

// stage returns where a late pod is stuck.
func (e *podEvidence) stage(ctx context.Context, p latePod) stage {
	e.readMounts()
	if p.ending {
		return e.endStage(ctx, p)
	}
	return e.startStage(ctx, p)
}

// ask queries the runtime, once.
func (e *podEvidence) ask(ctx context.Context) error {
	if e.asked {
		return e.askErr
	}
	e.asked = true
	r := e.host.Runtime
	ctx, cancel := context.WithTimeout(ctx, runtimeTimeout)
	defer cancel()
	if e.sandboxes, e.askErr = host.Ask(ctx, "container runtime", r.Sandboxes); e.askErr != nil {
		return e.askErr
	}
	if e.containers, e.askErr = host.Ask(ctx, "container runtime", r.Containers); e.askErr != nil || r.Status == nil {
		return e.askErr
	}
	if status, err := r.Status(ctx); err == nil {
		for _, c := range status.GetStatus().GetConditions() {
			if c.Type == "NetworkReady" && !c.Status {
				e.networkNotReady = checkkit.Sanitize(c.Reason+": "+c.Message, checkkit.MaxReported)
			}
		}
	}
	return nil
}

// readMounts reads the mount table, once.
func (e *podEvidence) readMounts() {
	if e.mounts == nil {
		if mounts, err := mount.Visible(mount.Recent(e.host)); err == nil { // without them volumes are evaluated by their directories alone
			e.mounts = mounts
		}
	}
}

// podCgroups reads the cgroups of all pods, once.
func (e *podEvidence) podCgroups() map[string][]cgroup.PodCgroup {
	if e.cgroups == nil {
		e.cgroups, e.cgroupsErr = podstate.CgroupsOf(e.host, e.mounts)
	}
	return e.cgroups
}
