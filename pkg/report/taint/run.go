package taint

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"

	"github.com/nodeagent/nodeagent/pkg/report"
)

const (
	// idle is the wait if there is no work; an Update wakes earlier.
	idle = time.Hour
	// askOwner is how often the Node is read again while another controller works on it.
	askOwner = time.Minute
	// conflicts bounds how often a write is repeated at once after a conflict.
	conflicts = 10
)

// Run sets and removes the taint until ctx ends. The taint stays after that, like the fault.
func (r *Reporter) Run(ctx context.Context) error {
	stop := r.behind.Start(ctx)
	report.Steps(ctx, r.changed, func(ctx context.Context) time.Time { return time.Now().Add(r.step(ctx)) })
	return stop()
}

// step does the due work and returns how long to wait for the next step.
func (r *Reporter) step(ctx context.Context) time.Duration {
	if left := time.Until(r.retryAt); left > 0 {
		return left
	}
	if off := r.config.Mode != On && r.config.Mode != DryRun; off && r.mine.Key == "" || !off && !r.hasState() {
		return idle
	}
	again := r.adoptSeen(time.Now())
	ctx, cancel := context.WithTimeout(ctx, r.config.Timeout)
	defer cancel()
	blocked, wait, err := r.attempt(ctx)
	switch {
	case err != nil && errors.Is(context.Cause(ctx), context.Canceled):
		return idle // the agent exits; not a fault of the apiserver
	case err != nil:
		r.config.Observer.Wrote(r.Name(), report.ResultError, err)
		r.warnOnce("the taint of this node is not changed", "err", err.Error())
		r.inTheWay("the taint of this node is not changed: " + err.Error())
		r.known = false
		r.retryAt = time.Now().Add(r.backoff.Failed(err))
		return time.Until(r.retryAt)
	}
	r.backoff.Succeeded()
	if blocked != "" {
		r.warnOnce("the taint of this node is left as it is", "why", blocked)
		r.inTheWay("the taint of this node is left as it is: " + blocked)
		return askOwner
	}
	r.inTheWay(r.never)
	if !again.IsZero() {
		wait = min(wait, time.Until(again))
	}
	return wait
}

func (r *Reporter) hasState() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.seen
}

// attempt reads the Node the first time, and writes its taints if they are not the intended ones.
func (r *Reporter) attempt(ctx context.Context) (blocked string, wait time.Duration, err error) {
	if !r.known {
		node, err := r.config.Node.GetNode(ctx)
		if err != nil {
			return "", 0, fmt.Errorf("read the Node: %w", err)
		}
		r.shown, r.known = find(node.Spec.Taints, r.config.Key), true
		r.tryRight(ctx, node)
	}
	wanted, checks, wait := r.decide(time.Now())
	if keepsAway(wanted) && keepsAway(r.shown) {
		var again time.Duration
		if wanted, again, err = r.afford(ctx, wanted); err != nil {
			return "", 0, err
		}
		wait = min(wait, again)
	}
	if sameTaint(r.shown, wanted) {
		if wanted == nil {
			err = r.forget(ctx)
		} else if !slices.Equal(r.mine.Checks, checks) {
			r.remember(checks)
		}
		return "", wait, err
	}
	blocked, again, err := r.apply(ctx, wanted, checks)
	return blocked, min(wait, again), err
}

// tryRight learns at the start, as a dry run, whether this identity may set the taint at all: kubelet's own never may, whatever
// RBAC says (NodeRestriction). The first fatal fault is too late to find out. What else the apiserver answers proves nothing.
func (r *Reporter) tryRight(ctx context.Context, node *corev1.Node) {
	if r.config.Mode != On || r.shown != nil {
		return
	}
	taint := corev1.Taint{Key: r.config.Key, Value: "probe", Effect: corev1.TaintEffectPreferNoSchedule}
	err := r.write(ctx, node.ResourceVersion, append(slices.Clone(node.Spec.Taints), taint), true)
	switch {
	case err == nil:
		r.never = ""
	case apierrors.IsForbidden(err):
		r.never = "this identity can never taint the node: " + err.Error()
		r.warnOnce("this identity can never taint the node", "err", err.Error())
	}
}

// keepsAway reports whether a taint needs the budget.
func keepsAway(t *corev1.Taint) bool { return t != nil && t.Effect == corev1.TaintEffectNoSchedule }

// afford returns a NoSchedule taint, weakened if the budget does not allow it, and when to ask again.
func (r *Reporter) afford(ctx context.Context, wanted *corev1.Taint) (*corev1.Taint, time.Duration, error) {
	if r.config.Budget == nil || r.config.Mode != On {
		return wanted, idle, nil
	}
	held, again, err := r.config.Budget.Hold(ctx)
	if err != nil {
		return nil, 0, fmt.Errorf("budget of isolated nodes: %w", err)
	}
	if !held {
		weaker := *wanted
		weaker.Effect = corev1.TaintEffectPreferNoSchedule
		wanted = &weaker
	}
	return wanted, again, nil
}

// repay returns the budget of a taint.
func (r *Reporter) repay(ctx context.Context) error {
	if r.config.Budget == nil {
		return nil
	}
	if err := r.config.Budget.Release(ctx); err != nil {
		return fmt.Errorf("budget of isolated nodes: %w", err)
	}
	return nil
}

// decide returns the taint that the Node should have (nil: none), the checks that ask for it, and when to decide again.
func (r *Reporter) decide(now time.Time) (wanted *corev1.Taint, checks []string, again time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.config.Mode != On && r.config.Mode != DryRun:
		return nil, nil, idle
	case r.wish.taint != nil:
		r.clear = time.Time{}
		return r.wish.taint, r.wish.checks, idle
	case r.shown == nil:
		return nil, nil, idle
	case slices.ContainsFunc(r.wish.unknown, func(check string) bool {
		return len(r.mine.Checks) == 0 || slices.Contains(r.mine.Checks, check)
	}):
		r.clear = time.Time{} // a check that asked for the taint is not known to be healthy
		return r.shown, r.mine.Checks, idle
	}
	if r.clear.IsZero() {
		r.clear = now
	}
	if left := r.config.Hold - now.Sub(r.clear); left > 0 {
		return r.shown, r.mine.Checks, left
	}
	return nil, nil, idle
}

// warnOnce logs a message unless it repeats the last one.
func (r *Reporter) warnOnce(message, key, value string) {
	if r.lastWarning != value {
		r.lastWarning = value
		r.config.Log.Warn(message, key, value)
	}
}

// apply writes the taints of the current Node, and retries on conflicts. If a change is not permitted, it returns the
// reason as blocked. It also returns when to ask the budget again.
func (r *Reporter) apply(ctx context.Context, asked *corev1.Taint, checks []string) (blocked string, again time.Duration,
	err error) {
	again, affordable := idle, (*corev1.Taint)(nil)
	for range conflicts {
		node, err := r.config.Node.GetNode(ctx)
		if err != nil {
			return "", 0, fmt.Errorf("read the Node: %w", err)
		}
		why := r.mayNot(node)
		if why == "" && r.config.Elsewhere != nil {
			if why, err = r.config.Elsewhere(ctx); err != nil {
				return "", 0, fmt.Errorf("who else works on this node: %w", err)
			}
		}
		if why != "" {
			return why, idle, nil
		}
		wanted := asked
		if keepsAway(asked) && !keepsAway(r.shown) {
			if affordable == nil {
				if affordable, again, err = r.afford(ctx, asked); err != nil {
					return "", 0, err
				}
			}
			wanted = affordable
		}
		taints, changes := merge(node.Spec.Taints, r.config.Key, wanted)
		if r.config.Mode == DryRun {
			return "dry-run: would change its taints to " + describe(taints), idle, nil
		}
		if wanted != nil && changes {
			if err := r.confined(ctx, node); apierrors.IsConflict(err) {
				continue
			} else if err != nil {
				return "", 0, fmt.Errorf("no taint without the admission policy that keeps this agent to its own: %w", err)
			}
		}
		if wanted != nil {
			r.remember(checks) // before the write: a crash must not leave a taint that no agent removes
		}
		if changes {
			err = r.write(ctx, node.ResourceVersion, taints, false)
		}
		if apierrors.IsConflict(err) {
			continue
		}
		if err == nil {
			err = r.wrote(ctx, wanted)
		}
		return "", again, err
	}
	return "", 0, fmt.Errorf("the Node was changed by others %d times in a row", conflicts)
}

func (r *Reporter) write(ctx context.Context, resourceVersion string, taints []corev1.Taint, dryRun bool) error {
	patch, err := encode(resourceVersion, taints)
	if err != nil {
		return err
	}
	if err := r.config.Node.PatchNode(ctx, patch, dryRun); err != nil {
		return fmt.Errorf("write the taints of the Node: %w", err)
	}
	return nil
}

// probe is a taint that the admission policy must reject: its key is not ours.
var probe = corev1.Taint{Key: "probe.nodeagent.github.io/confined", Effect: corev1.TaintEffectPreferNoSchedule}

// policyRefusal is in the apiserver's answer if a ValidatingAdmissionPolicy, and not RBAC, has rejected a request.
const policyRefusal = "ValidatingAdmissionPolicy"

// confined tries to add a taint of another key, as a dry run. Only if an admission policy rejects that, the permission
// to write the Node is limited to our key, and the token of one node is useless for another.
func (r *Reporter) confined(ctx context.Context, node *corev1.Node) error {
	err := r.write(ctx, node.ResourceVersion, append(slices.Clone(node.Spec.Taints), probe), true)
	switch {
	case err == nil:
		return errors.New("the apiserver would let it set any taint: install the chart with admissionPolicy.enabled")
	case apierrors.IsForbidden(err) && strings.Contains(err.Error(), policyRefusal):
		return nil
	}
	return err
}

func (r *Reporter) mayNot(node *corev1.Node) string {
	if r.config.Stopped != nil {
		if why := r.config.Stopped(); why != "" {
			return why
		}
	}
	return Owner(node)
}

// remember stores which checks ask for the taint.
func (r *Reporter) remember(checks []string) {
	r.mine = record{Key: r.config.Key, Checks: checks}
	if data, err := json.Marshal(r.mine); err == nil {
		r.behind.Put(recordKey, data)
	}
}

// forget returns the budget once the taint is gone, and then forgets the taint: after a restart between them both are
// repeated.
func (r *Reporter) forget(ctx context.Context) error {
	if r.mine.Key == "" {
		return nil
	}
	if err := r.repay(ctx); err != nil {
		return err
	}
	r.mine = record{}
	r.behind.Delete(recordKey)
	return nil
}

// wrote notes the current taints of the Node.
func (r *Reporter) wrote(ctx context.Context, wanted *corev1.Taint) error {
	r.config.Observer.Wrote(r.Name(), report.ResultOK, nil)
	before := r.shown
	if !sameTaint(before, wanted) {
		if wanted == nil {
			r.config.Log.Info("taint removed", "key", r.config.Key)
		} else {
			r.config.Log.Info("node tainted", "taint", wanted.ToString())
		}
	}
	r.shown, r.lastWarning, r.wroteAt = wanted, "", time.Now()
	switch {
	case wanted == nil:
		return r.forget(ctx)
	case keepsAway(before) && !keepsAway(wanted):
		return r.repay(ctx)
	}
	return nil
}

func sameTaint(a, b *corev1.Taint) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Value == b.Value && a.Effect == b.Effect
}

func describe(taints []corev1.Taint) string {
	texts := make([]string, len(taints))
	for i, t := range taints {
		texts[i] = t.ToString()
	}
	return "[" + strings.Join(texts, " ") + "]"
}

var _ report.Reporter = (*Reporter)(nil)
