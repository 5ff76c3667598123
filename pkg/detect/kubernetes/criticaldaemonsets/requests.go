package criticaldaemonsets

import (
	"context"
	"fmt"
	"slices"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The intervals of requests while a pod seems to be missing.
const (
	daemonSetFirst   = 30 * time.Second
	daemonSetLongest = 5 * time.Minute
)

// nodeCache keeps the Node between runs.
type nodeCache struct {
	seldom time.Duration // between reads without a fault
	read   finding.Timestamp
	wait   time.Duration
	node   *corev1.Node
	err    error
}

// get returns the Node, not older than seldom, or than a growing interval during a fault or while it cannot be read.
// Without a fault the last Node is then used.
func (c *nodeCache) get(ctx context.Context, h *host.Host, now finding.Timestamp, wrong bool) (*corev1.Node, error) {
	age := now.Since(c.read)
	limit := c.seldom
	if wrong || c.err != nil {
		limit = c.wait
	}
	if !c.read.IsZero() && (age < limit || !wrong && c.err == nil && atRest(h, age)) {
		return c.node, c.err
	}
	if !wrong && c.err == nil {
		c.wait = 0
	}
	c.read, c.wait = now, min(max(2*c.wait, daemonSetFirst), daemonSetLongest)
	node, err := h.Cluster.SeenNode(ctx)
	if err != nil {
		c.err = fmt.Errorf("node: %w", err)
		return c.node, c.err
	}
	c.node, c.err = node, nil
	return node, nil
}

// atRest reports whether the node has had no change for that long.
func atRest(h *host.Host, ago time.Duration) bool {
	return h.Cluster.Still != nil && h.Cluster.Still(ago)
}

// confirmation is the apiserver's last answer about a DaemonSet whose pod seems to be missing.
type confirmation struct {
	asked   finding.Timestamp
	wait    time.Duration
	set     *appsv1.DaemonSet
	gone    bool
	pending []corev1.Pod
	open    string
	err     error
}

// complete adds the parts of a DaemonSet's state that need a request.
func (c *daemonSetCheck) complete(ctx context.Context, h *host.Host, seen *daemonSetState, setsErr error,
	now finding.Timestamp) {
	seen.SetsErr = setsErr
	if seen.Set == nil {
		// Only the configuration wants it here, which counts if the agent may not ask the apiserver.
		seen.Placed = placement{Here: true}
		return
	}
	missing := bestPod(seen.Pods) == nil
	seen.Placed = c.placement(ctx, h, seen.Set, now, missing)
	if seen.Placed.Err != nil || !seen.Placed.Here {
		return
	}
	if !missing {
		delete(c.confirmed, seen.Name)
		c.follow(ctx, h, seen, now)
		return
	}
	last := c.confirm(ctx, h, seen.Set, now)
	seen.Pending, seen.Open = last.pending, last.open
	switch {
	case last.err != nil:
		seen.Placed = placement{Err: last.err}
	case last.gone:
		seen.Placed = placement{}
	case last.set != nil:
		seen.Set = last.set
		seen.Placed = c.placement(ctx, h, last.set, now, missing)
	}
}

func (c *daemonSetCheck) placement(ctx context.Context, h *host.Host, set *appsv1.DaemonSet, now finding.Timestamp,
	missing bool) placement {
	node, err := c.node.get(ctx, h, now, false)
	if node == nil {
		return placement{Err: err}
	}
	p := placementOn(set, node)
	if !p.Here || !missing {
		return p
	}
	// It should be here and is not: the Node may have changed.
	if node, err = c.node.get(ctx, h, now, true); err != nil {
		return placement{Err: err}
	}
	return placementOn(set, node)
}

// confirm asks the apiserver about a DaemonSet whose pod seems to be missing, at growing intervals.
func (c *daemonSetCheck) confirm(ctx context.Context, h *host.Host, set *appsv1.DaemonSet,
	now finding.Timestamp) confirmation {
	name := set.Namespace + "/" + set.Name
	last, known := c.confirmed[name]
	if known && now.Since(last.asked) < last.wait {
		return last
	}
	next := confirmation{asked: now, wait: min(max(2*last.wait, daemonSetFirst), daemonSetLongest)}
	if c.lookups.DaemonSet != nil {
		fresh, err := c.lookups.DaemonSet(ctx, set.Namespace, set.Name)
		next.set, next.gone = fresh, apierrors.IsNotFound(err)
		if err != nil && !next.gone {
			next.err = fmt.Errorf("DaemonSet %s: %w", name, err)
		}
	}
	if !next.gone && next.err == nil {
		next.pending, next.open = c.unscheduled(ctx, h, set)
	}
	c.confirmed[name] = next
	return next
}

// unscheduled returns the pods of a DaemonSet that are meant for this node and not scheduled yet, or why they are
// unknown.
func (c *daemonSetCheck) unscheduled(ctx context.Context, h *host.Host, set *appsv1.DaemonSet) ([]corev1.Pod, string) {
	if c.lookups.Unscheduled == nil {
		return nil, "or it is not scheduled yet"
	}
	selector, err := metav1.LabelSelectorAsSelector(set.Spec.Selector)
	if err != nil {
		return nil, fmt.Sprintf("or it is not scheduled yet: its selector is malformed: %v", err)
	}
	pods, err := c.lookups.Unscheduled(ctx, set.Namespace, selector.String())
	if err != nil {
		return nil, checkkit.Sanitize(fmt.Sprintf("or it is not scheduled yet, which is unknown: %v", err), 300)
	}
	return slices.DeleteFunc(slices.Clone(pods), func(pod corev1.Pod) bool {
		return !metav1.IsControlledBy(&pod, set) || !meantFor(&pod, h.NodeName)
	}), ""
}

// rollout is the progress of an update of a DaemonSet when it last advanced.
type rollout struct {
	generation int64
	updated    int32
	moved      finding.Timestamp
	watched    bool // its begin or an advance was observed; else it may have stopped before the agent's first run
}

// follow finds the newest revision of a DaemonSet, only while some of its pods lack it, and for how long the rollout
// has made no progress.
func (c *daemonSetCheck) follow(ctx context.Context, h *host.Host, seen *daemonSetState, now finding.Timestamp) {
	set := seen.Set
	kind := set.Spec.UpdateStrategy.Type
	done := set.Status.UpdatedNumberScheduled >= set.Status.DesiredNumberScheduled &&
		set.Status.ObservedGeneration >= set.Generation
	if done || kind != "" && kind != appsv1.RollingUpdateDaemonSetStrategyType || h.Cluster.ControllerRevisions == nil {
		delete(c.rollouts, seen.Name)
		return
	}
	last, known := c.rollouts[seen.Name]
	if !known || last.generation != set.Generation || last.updated != set.Status.UpdatedNumberScheduled {
		last = rollout{generation: set.Generation, updated: set.Status.UpdatedNumberScheduled, moved: now,
			watched: known}
		c.rollouts[seen.Name] = last
	}
	revisions, err := h.Cluster.ControllerRevisions(ctx, set.Namespace)
	if err != nil {
		return // the pod can be evaluated; only its revision is not known
	}
	seen.Newest = newestRevision(set, revisions)
	seen.Still = now.Since(last.moved)
	if seen.Newest != nil && !last.watched && set.Status.NumberUnavailable == 0 {
		// No pod holds it back, and no advance was observed: it has stood still since it began.
		seen.Still = max(seen.Still, now.Wall.Sub(seen.Newest.CreationTimestamp.Time))
	}
}

// newestRevision returns the revision that a DaemonSet's pods should have.
func newestRevision(set *appsv1.DaemonSet, revisions []appsv1.ControllerRevision) *appsv1.ControllerRevision {
	var newest *appsv1.ControllerRevision
	for i := range revisions {
		r := &revisions[i]
		if metav1.IsControlledBy(r, set) && (newest == nil || r.Revision > newest.Revision) {
			newest = r
		}
	}
	return newest
}
