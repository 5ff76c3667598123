// Package podevidence follows the pods of this node that start or end, and reports those that are late, and one of twenty: with
// times and facts that only the node has. It learns of pods from the watch that the agent has anyway, and of containers from the
// runtime. While no pod starts or ends, it does not run.
package podevidence

import (
	"cmp"
	"hash/fnv"
	"time"

	corev1 "k8s.io/api/core/v1"
	cri "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/nodeagent/nodeagent/pkg/event"
)

const (
	creation, deletion = "creation", "deletion"

	lateAfter = 20 * time.Second // since the sandbox was requested, or since the containers ended
	sendAfter = 50 * time.Second // a promised minute is not over yet
	tick      = 10 * time.Second // while a pod starts or ends
	sampled   = 20               // one pod of so many is reported although it is not late
	maxActs   = 1000
)

type key struct{ uid, act string }

// act is an unfinished creation or deletion.
type act struct {
	pod     *corev1.Pod // newest
	e       event.Evidence
	grace   time.Time // deletion: end of the grace period
	sandbox string    // ID of the newest
	attempt uint32    // of the sandbox
	sent    bool
}

// tracker follows acts. It is pure: all times are arguments.
type tracker struct{ acts map[key]*act }

// saw takes a change of a pod.
func (t *tracker) saw(pod *corev1.Pod, gone bool, now time.Time) {
	if _, mirror := pod.Annotations[corev1.MirrorPodAnnotationKey]; mirror {
		return // the node uses another UID for it
	}
	pending := pod.Status.Phase == corev1.PodPending || pod.Status.Phase == ""
	deleting := pod.DeletionTimestamp != nil
	a, fresh := t.act(pod, creation, pending && !gone && !deleting, now)
	if started := pod.Status.StartTime; fresh && started != nil && started.Time.Before(now.Add(-2*time.Second)) {
		a.e.Began = started.Time
	}
	if a != nil && (gone || !pending || deleting) {
		a.end(now)
	}
	a, fresh = t.act(pod, deletion, deleting && !gone, now)
	if grace := pod.DeletionGracePeriodSeconds; fresh && grace != nil {
		a.grace = now.Add(time.Duration(min(max(*grace, 0), 1<<31)) * time.Second)
	}
	if a != nil && gone {
		a.end(now)
	}
}

// act returns the unfinished act of a pod; a fresh one if it begins now, unless there are too many.
func (t *tracker) act(pod *corev1.Pod, kind string, begins bool, now time.Time) (a *act, fresh bool) {
	k := key{string(pod.UID), kind}
	if a = t.acts[k]; a != nil {
		a.pod = pod
		return a, false
	}
	if !begins || len(t.acts) >= maxActs {
		return nil, false
	}
	a = &act{pod: pod, grace: now, e: event.Evidence{Act: kind, UID: k.uid, Namespace: pod.Namespace, Name: pod.Name, Began: now}}
	t.acts[k] = a
	return a, true
}

// of returns the unfinished acts of a pod.
func (t *tracker) of(uid string) (acts []*act) {
	for _, kind := range []string{creation, deletion} {
		if a := t.acts[key{uid, kind}]; a != nil {
			acts = append(acts, a)
		}
	}
	return acts
}

func (a *act) end(now time.Time) {
	if a.e.Ended.IsZero() {
		a.e.Ended = now
	}
}

// took takes an event of the runtime.
func (t *tracker) took(r *cri.ContainerEventResponse) {
	s := r.GetPodSandboxStatus()
	for _, a := range t.of(s.GetMetadata().GetUid()) {
		if !a.takeSandbox(s.GetId(), s.GetMetadata().GetAttempt(), s.GetCreatedAt()) {
			continue
		}
		if at := moment(r.CreatedAt); r.ContainerId == a.sandbox {
			switch r.ContainerEventType {
			case cri.ContainerEventType_CONTAINER_STARTED_EVENT:
				a.e.SandboxReady = at
			case cri.ContainerEventType_CONTAINER_STOPPED_EVENT, cri.ContainerEventType_CONTAINER_DELETED_EVENT:
				a.stopped(at)
			}
		}
		for _, c := range r.ContainersStatuses {
			a.takeContainer(c.GetMetadata(), event.Lifetimes{Created: moment(c.CreatedAt), Started: moment(c.StartedAt),
				Exited: moment(c.FinishedAt)})
		}
	}
}

// listed takes the runtime's lists: without the times of starts and exits, and with the stop of a sandbox up to a tick late.
func (t *tracker) listed(sandboxes []*cri.PodSandbox, containers []*cri.Container, now time.Time) {
	for _, s := range sandboxes {
		for _, a := range t.of(s.GetMetadata().GetUid()) {
			if a.takeSandbox(s.Id, s.GetMetadata().GetAttempt(), s.CreatedAt) && s.State == cri.PodSandboxState_SANDBOX_NOTREADY {
				a.stopped(now)
			}
		}
	}
	for _, c := range containers {
		for _, a := range t.of(c.Labels["io.kubernetes.pod.uid"]) {
			if c.PodSandboxId == a.sandbox {
				a.takeContainer(c.GetMetadata(), event.Lifetimes{Created: moment(c.CreatedAt)})
			}
		}
	}
}

func (a *act) stopped(at time.Time) {
	if a.e.SandboxStopped.IsZero() && a.e.Act == deletion {
		a.e.SandboxStopped = at
	}
}

// takeSandbox reports whether a sandbox is the newest of its pod.
func (a *act) takeSandbox(id string, attempt uint32, created int64) bool {
	if a.sandbox != "" && attempt < a.attempt {
		return false
	}
	if id != a.sandbox {
		a.sandbox, a.attempt = id, attempt
		a.e.SandboxCreated, a.e.SandboxReady, a.e.SandboxStopped = moment(created), time.Time{}, time.Time{}
	}
	return true
}

// takeContainer keeps the first run of a container for a creation, and the last one for a deletion.
func (a *act) takeContainer(meta *cri.ContainerMetadata, seen event.Lifetimes) {
	seen.Name = meta.GetName()
	for i, known := range a.e.Containers {
		if known.Name != seen.Name {
			continue
		}
		if known.Created.Equal(seen.Created) || known.Created.Before(seen.Created) == (a.e.Act == deletion) {
			if seen.Started.IsZero() {
				seen.Started, seen.Exited = known.Started, known.Exited // of a list
			}
			a.e.Containers[i] = seen
		}
		return
	}
	a.e.Containers = append(a.e.Containers, seen)
}

// moment is a time of CRI, in ns; 0 and -62135596800 s, Go's zero time, are none.
func moment(ns int64) time.Time {
	if ns <= 0 {
		return time.Time{}
	}
	return time.Unix(0, ns).UTC()
}

// base is the time from which the lateness of an act counts.
func (a *act) base() time.Time {
	if a.e.Act == creation {
		return cmp.Or(a.e.SandboxRequested, a.e.Began)
	}
	return cmp.Or(a.exited(), a.grace)
}

// exited returns when the last container ended; zero: not all have, or it is unknown.
func (a *act) exited() (last time.Time) {
	for _, s := range a.pod.Status.ContainerStatuses {
		if s.State.Terminated == nil {
			return time.Time{}
		}
		if at := s.State.Terminated.FinishedAt.Time; at.After(last) {
			last = at
		}
	}
	return last
}

// due returns the acts to report now, without those that ended, and when to look again; zero: when something changes.
func (t *tracker) due(now time.Time) (send []*act, next time.Time) {
	for k, a := range t.acts {
		limit := a.base().Add(sendAfter)
		if a.e.Act == creation {
			limit = a.e.Began.Add(sendAfter)
		}
		switch {
		case !a.e.Ended.IsZero():
			delete(t.acts, k)
			if !a.sent && (a.e.Ended.Sub(a.base()) >= lateAfter || isSampled(a.e.UID)) {
				send = append(send, a)
			}
		case a.sent:
		case !now.Before(limit):
			a.sent = true
			send = append(send, a)
		default:
			if next.IsZero() {
				next = now.Add(tick)
			}
			if limit.Before(next) {
				next = limit
			}
		}
	}
	return send, next
}

func isSampled(uid string) bool {
	h := fnv.New32a()
	_, _ = h.Write([]byte(uid))
	return h.Sum32()%sampled == 0
}
