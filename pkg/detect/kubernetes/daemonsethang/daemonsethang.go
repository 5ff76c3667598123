// Package daemonsethang finds containers of DaemonSets that run but hang.
package daemonsethang

import (
	"context"
	"fmt"
	"path"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// daemonset-hang checks one container of each DaemonSet that the configuration lists: whether the program behind its
// health socket answers, and whether a thread of its main process waits in the kernel without end
// (/proc/PID/task/TID/stat, fields 3, 14 and 15: state D and no time on a processor):
//
//	4711 (calico-node) D 4690 4711 4711 0 -1 4194560 …
//
// https://man7.org/linux/man-pages/man5/proc_pid_stat.5.html. The pod is that of kubelet's list (/pods) whose owner
// reference names the DaemonSet; the processes are those in the container's cgroup.
//
// Kubelet's own liveness probe restarts a container that does not answer: this check is for DaemonSets without one, and
// for processes that kubelet cannot end.
//
// Cost. None unless a DaemonSet is listed. Then one connection a minute for each, and one pass over /proc for each new
// container.

// Settings are the knobs of daemonset-hang.
type Settings struct {
	DaemonSets []Watched `yaml:"daemonSets"` // the DaemonSets to check; none unless listed
}

// Watched is a container of a DaemonSet. Without socket and port only its processes are checked.
type Watched struct {
	Name      string `yaml:"name"`      // namespace/name of the DaemonSet
	Container string `yaml:"container"` // of its pod; may be empty if it has only one
	Socket    string `yaml:"socket"`    // a Unix socket of the host, below /run, on which it answers
	Port      int    `yaml:"port"`      // a TCP port on which it answers: of the pod's address, or of 127.0.0.1 with hostNetwork
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings { return Settings{} }

// Validate returns the malformed parts of s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	seen := map[string]bool{}
	for i, w := range s.DaemonSets {
		key := fmt.Sprintf("daemonSets.%d", i)
		namespace, base, _ := strings.Cut(w.Name, "/")
		below := strings.HasPrefix(w.Socket, "/run/") || strings.HasPrefix(w.Socket, "/var/run/")
		wrong.Check(key, namespace != "" && base != "" && !strings.Contains(base, "/"),
			"name: %q: must be namespace/name", w.Name)
		wrong.Check(key, !seen[w.Name], "name: %q is listed twice", w.Name)
		wrong.Check(key, w.Socket == "" || w.Port == 0, "socket and port: must be one of them")
		wrong.Check(key, w.Socket == "" || below && path.Clean(w.Socket) == w.Socket,
			"socket: %q: must be a clean path below /run", w.Socket)
		wrong.Check(key, w.Port >= 0 && w.Port <= 65535, "port: %d: must be at most 65535", w.Port)
		seen[w.Name] = true
	}
	return wrong.OrNil()
}

// New finds listed DaemonSets whose container on this node hangs.
func New(s Settings) detect.Check { return newCheck(s, patience) }

func newCheck(s Settings, patience time.Duration) detect.Check {
	c := &hangCheck{settings: s, patience: patience, watches: map[string]*watch{}}
	return detect.Check{
		ID:      "daemonset-hang",
		Domain:  "kubernetes",
		Summary: "the container of a listed DaemonSet runs, and hangs",
		Advice: "Look at the container's log. Where its process hangs in the kernel, `cat /proc/PID/stack` shows in " +
			"what: a filesystem or a device that does not answer is repaired first. Otherwise the container may be " +
			"restarted: `crictl stop ID`, or the action restart-daemonset-container.",
		Doc: detect.Doc{
			Reads: []string{"kubelet's pods", "/proc/PID/cgroup and /proc/PID/task/*/stat of the listed containers",
				"their health sockets"},
			Why: "A daemon that hangs serves no pod of the node, while its pod is Running and looks healthy.",
			Faults: []detect.Fault{
				{Reason: "DaemonSetPodNotAnswering", Severity: finding.Warning,
					When: "the health socket of its container has not answered in 3 looks over 5 minutes"},
				{Reason: "DaemonSetPodHungInKernel", Severity: finding.Warning,
					When: "a thread of its main process was in state D, without time on a processor, in 3 looks over 5 " +
						"minutes"},
			},
			FalseAlarms: "Only what the configuration lists is looked at. A container that has just started, by its " +
				"startup probe, is not judged. A server that waits for a protocol of its own and neither answers nor " +
				"closes seems dead: do not name its socket.",
		},
		Every:    time.Minute,
		Deadline: 30 * time.Second,
		Run:      c.run,
	}
}

// hangCheck is the check with its state between runs.
type hangCheck struct {
	settings Settings
	patience time.Duration     // with one socket
	watches  map[string]*watch // by the DaemonSet's name
}

const (
	maxParallel = 4               // sockets asked at a time
	patience    = 4 * time.Second // with one
)

func (c *hangCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if len(c.settings.DaemonSets) == 0 {
		return nil, finding.NotApplicable("the configuration lists no DaemonSet (daemonSets)")
	}
	if h.NodeName == "" || h.Kubelet.Pods == nil {
		return nil, finding.NotApplicable("this host is not known to be a Kubernetes node")
	}
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("pods of kubelet: %w", err)
	}
	listed := c.settings.DaemonSets
	observations := make([]observation, len(listed))
	failures := make([]error, len(listed))
	for _, w := range listed {
		if c.watches[w.Name] == nil {
			c.watches[w.Name] = &watch{}
		}
	}
	var observing errgroup.Group
	observing.SetLimit(maxParallel)
	for i, w := range listed {
		observing.Go(func() error {
			observations[i], failures[i] = observe(ctx, h, w, pods, c.watches[w.Name].main, c.patience)
			return nil
		})
	}
	_ = observing.Wait() // an observation has its own failure
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var results checkkit.Results
	for i, w := range listed {
		subject := finding.Subject{Kind: "daemonset", Name: w.Name}
		f, err := c.watches[w.Name].evaluate(observations[i], failures[i], h.Clock())
		if f != nil {
			f.Subject = subject
			f.Message = "DaemonSet " + w.Name + ": " + f.Message
		}
		results.Take(subject, f, err)
	}
	return results.Done()
}
