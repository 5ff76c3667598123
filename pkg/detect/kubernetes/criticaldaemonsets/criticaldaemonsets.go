// Package criticaldaemonsets finds DaemonSets without a working pod on the node.
package criticaldaemonsets

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"path"
	"strings"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/setting"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// critical-daemonsets compares the DaemonSets that every node of their kind must have with the pods that kubelet
// reports (/pods). A pod of a DaemonSet is recognized by its owner reference:
//
//	metadata: {ownerReferences: [{kind: DaemonSet, name: kube-proxy, controller: true}], labels: {controller-revision-hash: 5f4d…}}
//
// https://kubernetes.io/docs/concepts/workloads/controllers/daemonset/. Whether a DaemonSet places a pod here is
// decided as its controller does: node name, node selector, required affinity, and taints against the tolerations of
// its pods and those that the controller adds.
//
// Cost. Kubelet's pods are read again after a change of any pod, and else once in 40 minutes. DaemonSets come from the
// client's cache of minutes; the Node is read every 10 to 15 minutes (both once in 40 while no pod changes), and like
// the DaemonSet and its unscheduled pods at growing intervals (30 s to 5 min) while a pod seems to be missing. A pod
// that is not scheduled yet is on no node's list: the check finds it by a LIST of the DaemonSet's pods without a node,
// whose node affinity (matchFields metadata.name) names the node of each.
//
// With kubelet's own credentials DaemonSets cannot be listed. Then those that the configuration lists must have a pod
// here, and a critical pod of any other must be healthy if it is here.

// Settings are the knobs of critical-daemonsets.
type Settings struct {
	PriorityClasses []string      `yaml:"priorityClasses"` // DaemonSets of these classes are critical
	Selector        string        `yaml:"selector"`        // and those whose labels match; empty for none
	DaemonSets      []string      `yaml:"daemonSets"`      // and these, as namespace/name
	Namespaces      []string      `yaml:"namespaces"`      // only in these can an unlisted one be fatal; "a-*" too
	Ignore          []string      `yaml:"ignore"`          // but never these, as namespace/name
	BootGrace       time.Duration `yaml:"bootGrace"`       // grace of a younger node or DaemonSet
	ReadyGrace      time.Duration `yaml:"readyGrace"`      // time for a pod to become ready
	RevisionGrace   time.Duration `yaml:"revisionGrace"`   // time that a rollout may make no progress
}

// DefaultSettings returns the settings that are used unless the configuration says otherwise.
func DefaultSettings() Settings {
	return Settings{
		PriorityClasses: []string{"system-node-critical"}, Selector: "nodeagent.io/critical=true",
		Namespaces: []string{"kube-system", "kube-flannel", "calico-system", "cilium", "openshift-*"},
		BootGrace:  5 * time.Minute, ReadyGrace: 3 * time.Minute, RevisionGrace: 2 * time.Hour,
	}
}

// Validate returns the malformed parts of s.
func (s Settings) Validate() error {
	wrong := setting.Mistakes{}
	_, err := labels.Parse(s.Selector)
	wrong.Check("selector", err == nil, "%q: %v", s.Selector, err)
	for _, pattern := range s.Namespaces {
		_, err := path.Match(pattern, "")
		wrong.Check("namespaces", err == nil, "%q: %v", pattern, err)
	}
	for key, names := range map[string][]string{"daemonSets": s.DaemonSets, "ignore": s.Ignore} {
		for _, name := range names {
			namespace, base, _ := strings.Cut(name, "/")
			wrong.Check(key, namespace != "" && base != "" && !strings.Contains(base, "/"), "%q: must be namespace/name", name)
		}
	}
	return wrong.OrNil()
}

// DaemonSetLookups are the requests that are made only if a pod seems to be missing. Either may be nil: then its answer
// is unknown, and the message says so.
type DaemonSetLookups struct {
	// DaemonSet gets the present state of one DaemonSet, not from a cache.
	DaemonSet func(ctx context.Context, namespace, name string) (*appsv1.DaemonSet, error)
	// Unscheduled lists the pods of a namespace that match a label selector and are on no node (spec.nodeName="").
	Unscheduled func(ctx context.Context, namespace, selector string) ([]corev1.Pod, error)
}

// New finds critical DaemonSets that should have a ready pod on this node and have none.
func New(s Settings, lookups DaemonSetLookups) detect.Check {
	c := &daemonSetCheck{settings: s, lookups: lookups, confirmed: map[string]confirmation{},
		rollouts: map[string]rollout{}}
	c.node.seldom = 10*time.Minute + rand.N(5*time.Minute) // #nosec G404 -- spreads load over time, no secret
	return detect.Check{
		ID:      "critical-daemonsets",
		Domain:  "kubernetes",
		Summary: "a critical DaemonSet has no ready pod on this node",
		Advice: "Find the pod with `kubectl -n NAMESPACE get pods -o wide --field-selector spec.nodeName=NODE` and " +
			"run `kubectl describe` for it. If there is no pod, check the DaemonSet's events; if it is not " +
			"scheduled, the pod's events; if it crash loops, the log of the container that failed.",
		Doc: detect.Doc{
			Reads: []string{"kubelet's pods, after changes", "DaemonSets, from the apiserver's cache and rarely",
				"this Node's labels and taints"},
			Why: "Without its network, storage or proxy agent a node accepts pods that cannot work.",
			Faults: []detect.Fault{
				{Reason: "DaemonSetPodMissing", Severity: finding.Fatal,
					When: "no pod of it is on this node although its controller would place one here"},
				{Reason: "DaemonSetPodNotScheduled", Severity: finding.Fatal,
					When: "its pod for this node is not scheduled"},
				{Reason: "DaemonSetPodNotReady", Severity: finding.Fatal,
					When: "its pod is not ready for 3 minutes, or does not end"},
				{Reason: "DaemonSetPodCrashLooping", Severity: finding.Fatal,
					When: "a container of its pod crashes again and again, also where it is ready in between"},
				{Reason: "DaemonSetRevisionStuck", Severity: finding.Warning,
					When: "its pod is of an old revision and the rollout has made no progress for 2 hours"},
				{Reason: "DaemonSetNotFound", Severity: finding.Warning,
					When: "the configuration lists one that does not exist"},
			},
			FalseAlarms: "Nodes that have just booted and pods that were just created have a grace time. With " +
				"OnDelete an old revision is by design. A DaemonSet that nobody has listed is fatal only in a " +
				"namespace of the cluster's own (namespaces), elsewhere a warning: each priority class and label is " +
				"open to whoever may create pods. While the apiserver is unreachable, kubelet's status of " +
				"pods may be old.",
		},
		Condition: finding.Condition{
			Type: "CriticalDaemonSetNotReady", ReadyType: "CriticalDaemonSetsReady",
			HealthyReason:  "CriticalDaemonSetsAreReady",
			HealthyMessage: "All critical DaemonSets have a ready pod on the node",
		},
		Every:    30 * time.Second,
		Deadline: 30 * time.Second,
		Policy:   finding.Policy{Raise: finding.Hold{Runs: 2, For: time.Minute}, Clear: finding.Hold{Runs: 2}},
		Run:      c.run,
	}
}

// daemonSetCheck is the check with its state between runs.
type daemonSetCheck struct {
	settings  Settings
	lookups   DaemonSetLookups
	sets      []appsv1.DaemonSet // as last read
	listed    bool
	refusal   refusal
	node      nodeCache
	confirmed map[string]confirmation // by namespace/name: DaemonSets whose pod seems to be missing
	rollouts  map[string]rollout      // by namespace/name
}

func (c *daemonSetCheck) run(ctx context.Context, h *host.Host) ([]finding.Finding, error) {
	if h.NodeName == "" || h.Kubelet.Pods == nil {
		return nil, finding.NotApplicable("this host is not known to be a Kubernetes node")
	}
	pods, err := discover.NodePods(ctx, h)
	if err != nil {
		return nil, fmt.Errorf("pods of kubelet: %w", err)
	}
	now := h.Clock()
	setsErr := c.refreshSets(ctx, h, now)
	critical, err := criticalSets(c.settings, c.sets, pods)
	if err != nil {
		return nil, err
	}
	var results checkkit.Results
	for _, seen := range critical {
		c.complete(ctx, h, &seen, setsErr, now)
		f, err := evaluateDaemonSet(seen, c.settings, now.Wall)
		if err == nil && f != nil && !f.BelowRaise {
			err = booting(h, c.node.node, c.settings.BootGrace, now)
		}
		results.Take(seen.subject(), f, err)
	}
	c.forget(critical)
	switch {
	case setsErr != nil && !cannotList(setsErr) && !c.listed:
		return results.Inconclusive(fmt.Errorf("which DaemonSets are critical: %w", setsErr))
	case len(critical) == 0 && setsErr != nil && !c.listed:
		return nil, finding.NotApplicable("DaemonSets may not be listed, the configuration names none and no "+
			"critical pod is here: %v", setsErr)
	}
	return results.Done()
}

// cannotList reports whether this agent has no right or no way to list DaemonSets.
func cannotList(err error) bool {
	return apierrors.IsForbidden(err) || errors.Is(err, hosterr.ErrNotConfigured)
}

// refusal delays the next request after a failed one.
type refusal struct {
	asked finding.Timestamp
	wait  time.Duration
	err   error
}

// refreshSets reads the DaemonSets. If it cannot, the last ones stay.
func (c *daemonSetCheck) refreshSets(ctx context.Context, h *host.Host, now finding.Timestamp) error {
	if c.refusal.err != nil && now.Since(c.refusal.asked) < c.refusal.wait {
		return c.refusal.err
	}
	sets, err := host.Ask(ctx, "DaemonSets", h.Cluster.DaemonSets)
	switch {
	case apierrors.IsForbidden(err):
		c.refusal = refusal{asked: now, wait: c.node.seldom, err: err}
	case err != nil:
		c.refusal = refusal{asked: now, wait: min(max(2*c.refusal.wait, daemonSetFirst), daemonSetLongest), err: err}
	default:
		c.refusal, c.sets, c.listed = refusal{}, sets, true
	}
	return err
}

// forget drops the state of DaemonSets that are no longer critical, or are gone.
func (c *daemonSetCheck) forget(critical []daemonSetState) {
	there := map[string]bool{}
	for _, seen := range critical {
		there[seen.Name] = true
	}
	maps.DeleteFunc(c.confirmed, func(name string, _ confirmation) bool { return !there[name] })
	maps.DeleteFunc(c.rollouts, func(name string, _ rollout) bool { return !there[name] })
}

// booting returns why the state is not settled yet: the machine, its kubelet or its Node has just started.
func booting(h *host.Host, node *corev1.Node, grace time.Duration, now finding.Timestamp) error {
	if now.SinceBoot < grace {
		return fmt.Errorf("the machine has been up for %s only", now.SinceBoot.Round(time.Second))
	}
	if h.Kubelet.Process != nil {
		if kubelet, err := h.Kubelet.Process(); err == nil && kubelet.Age(now.SinceBoot) < min(grace, 2*time.Minute) {
			return fmt.Errorf("kubelet has been up for %s only", kubelet.Age(now.SinceBoot).Round(time.Second))
		}
	}
	if node != nil && now.Wall.Sub(node.CreationTimestamp.Time).Abs() < grace {
		return errors.New("the node has just joined the cluster")
	}
	return nil
}
