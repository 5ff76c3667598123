// Package stuckpods finds pods that neither start nor end, and the step for which they wait.
package stuckpods

import (
	"context"
	"fmt"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// stuck-pods reads kubelet's list of pods (GET /pods, a v1.PodList), the names in <kubelet root>/pods and, of pods that
// are late, or have no directory there although they run,
//
//	their sandboxes and containers over CRI (ListPodSandbox, ListContainers, Status)
//	<kubelet root>/pods/<uid>/volumes/<plugin>/<volume>     exists once the volume is set up
//	/proc/1/mountinfo                                       and mounted, where its plugin mounts
//	cgroup.procs, freezer.state or cgroup.freeze            of the pod's cgroups
//	/proc/PID/stat, /proc/PID/task/TID/{stat,wchan}         of the processes in them
//	/var/lib/cni/results                                    has an attachment until its CNI DEL has succeeded
//
// https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/. Kubelet waits for volumes, then creates the
// sandbox and its network, then pulls images and creates containers; it ends containers, then the sandbox, then
// volumes, then the cgroup, and only then lets the apiserver delete the pod. The stage is the first unfinished one of
// these.
//
// After 5 minutes a start-up objective of one minute is certainly missed, and kubelet has tried each step at least
// twice: it allows volumes 2 minutes. Durations are counted by the time since boot from the run that saw the pod first;
// only the age of pods from before the agent's first run comes from the wall clock.

// Settings are the thresholds of stuck-pods.
type Settings struct {
	StartAfter time.Duration `yaml:"startAfter"` // a pod that has been starting for longer is stuck
	PullAfter  time.Duration `yaml:"pullAfter"`  // the same while an image is being pulled
	// a pod that remains for longer after its grace period is stuck
	TerminateAfter time.Duration `yaml:"terminateAfter"`
	// a pod that runs by its status, and of which the node has had no trace for longer, is lost
	TraceAfter time.Duration `yaml:"traceAfter"`
	// this many pods stuck in one stage are a fault of the node, reported once
	Many int `yaml:"many"`
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings {
	return Settings{StartAfter: 5 * time.Minute, PullAfter: 15 * time.Minute, TerminateAfter: 10 * time.Minute,
		TraceAfter: 15 * time.Minute, Many: 5}
}

const (
	// maxStuckPods bounds the pods that are reported individually: those stuck for longest.
	maxStuckPods = 20
)

// New finds pods that do not start or do not end, and their stage.
func New(s Settings) detect.Check {
	m := &stuckState{pods: map[string]podClock{}}
	return detect.Check{
		ID:      "stuck-pods",
		Domain:  "kubernetes",
		Summary: "pods on this node do not start, or do not end",
		Advice: "The message names the stage. Volumes: check `kubectl describe pod` and the driver's log. Sandbox " +
			"and network: check `journalctl -u kubelet -u containerd` and the CNI plugin's pod. Images: check the " +
			"registry. Processes that do not exit: read `cat /proc/PID/stack`; one in state D waits for a disk or " +
			"server, a frozen one for a thaw of its cgroup. Finalizers: check their controller. `nodeagent inspect pod " +
			"NAMESPACE/NAME` explains one pod, `nodeagent inspect` shows leftovers of deleted pods.",
		Doc: detect.Doc{
			Reads: []string{"https://127.0.0.1:10250/pods, after changes", "<kubelet root>/pods/UID/volumes",
				"<kubelet root>/pods, its names",
				"CRI ListPodSandbox, ListContainers and Status",
				"/proc/1/mountinfo", "the cgroups of late pods", "/proc/PID/task/TID/stat of their processes",
				"/var/lib/cni/results, when a pod does not end"},
			Why: "Users wait for a pod that does not start. One that does not end blocks its StatefulSet, its " +
				"volumes and the drain of the node.",
			Faults: []detect.Fault{
				{Reason: "PodStuckStarting", Severity: finding.Warning, When: "not started for 5 minutes (15 while " +
					"an image is pulled), in a stage that depends on the node or the cluster"},
				{Reason: "PodStuckTerminating", Severity: finding.Warning,
					When: "still there 10 minutes after its grace period"},
				{Reason: "PodWithoutTrace", Severity: finding.Warning, When: "runs by its status, and for 15 minutes " +
					"the runtime, kubelet's directory and the cgroups have shown no object of it"},
				{Reason: "PodCannotStart", Severity: finding.Info, When: "not started for 5 minutes for a reason " +
					"that only the pod's specification can correct"},
				{Reason: "PodHeldByFinalizers", Severity: finding.Info,
					When: "10 minutes after its grace period no object of the pod is left on the node, but its " +
						"finalizers keep the object"},
				{Reason: "ManyPodsStuck", Severity: finding.Warning, When: "5 pods or more are stuck in the same " +
					"stage: the cause is most likely the node's"},
			},
			FalseAlarms: "Init containers that run for long, containers that crash (CrashLoopBackOff) and preStop " +
				"hooks within the grace period are ignored. After a start of the agent ages are taken from the wall " +
				"clock once: after a clock step they may be wrong until the pod has started. Pods without a trace: a " +
				"list of the apiserver may be 10 minutes old where kubelet does not show its own, hence 15 minutes; " +
				"static pods and their mirrors are ignored, and so are all while kubelet's directory has none of " +
				"the pods: it is elsewhere.",
		},
		Uses:     []host.Setting{host.KubeletAPI, host.KubeletRoot, host.CgroupRoot, host.CRISocket},
		Every:    2 * time.Minute,
		Deadline: 15 * time.Second,
		Run:      func(ctx context.Context, h *host.Host) ([]finding.Finding, error) { return m.observe(ctx, h, s) },
	}
}

// stuckState holds since when pods have been starting or ending.
type stuckState struct {
	last finding.Timestamp
	pods map[string]podClock // by UID

	traceless map[string]time.Duration // since when the node has no trace of a pod, by UID and time since boot
}

func (m *stuckState) observe(ctx context.Context, h *host.Host, s Settings) ([]finding.Finding, error) {
	if h.Kubelet.Pods == nil {
		return nil, finding.NotApplicable("no kubelet is configured on this host")
	}
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("pods of kubelet: %w", err)
	}
	late := m.late(pods, h.Clock(), s)
	evidence := &podEvidence{host: h, settings: s}
	untraced := m.untraced(ctx, pods, evidence)
	var stuck []latePod
	for _, p := range late {
		if err := ctx.Err(); err != nil {
			return nil, fmt.Errorf("check pod %s/%s: %w", p.pod.Namespace, p.pod.Name, err)
		}
		if p.where = evidence.stage(ctx, p); p.where.stage != "" {
			stuck = append(stuck, p)
		}
	}
	return append(stuckFindings(h, stuck, s), untracedFindings(h, untraced)...), nil
}
