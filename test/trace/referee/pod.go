package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// pod is the history of a pod, in times of the audit log.
type pod struct {
	uid, namespace, name, node    string
	ownerKind, owner              string // the controller: its UID
	always, static, gated, young  bool
	created, ungated              time.Time
	ready, ran, failed            time.Time
	disrupted, held               bool
	specGrace, grace              time.Duration
	deleted, noticed, ended, gone time.Time
	containers                    []container
	digest                        string
	running                       map[string]time.Time // startedAt of the running containers
	changes                       []*change
	replaces                      *pod
	excludedNamespace             bool
}

type container struct {
	name    string
	hook    bool
	started bounds // when it started
	shown   time.Time
}

// bounds of a time: startedAt has a resolution of seconds.
type bounds struct{ low, high time.Time }

// change is a change of the images or resources of a ready pod.
type change struct {
	generation           int64
	at, noticed, stopped time.Time
	done                 time.Time
	old                  map[string]time.Time
	images               map[string]bool // containers whose image has changed
}

func (g *game) pod(o *corev1.Pod, deletion, status bool, at time.Time) {
	p := g.pods[string(o.UID)]
	if p == nil {
		p = g.begin(o, at)
	}
	if o.Spec.NodeName != "" {
		g.placed(p, o.Spec.NodeName, at)
	}
	if p.gated && p.ungated.IsZero() && len(o.Spec.SchedulingGates) == 0 {
		p.ungated = at
	}
	p.changed(o, at)
	// A deletion without a grace period, and the removal of the last finalizer, end the object.
	grace := time.Duration(0)
	if s := o.DeletionGracePeriodSeconds; s != nil {
		grace = time.Duration(*s) * time.Second
	}
	switch {
	case deletion: // the object has the state before it
		p.status(o, status, at)
		g.requested(p, grace, at)
	case o.DeletionTimestamp != nil: // requested before this change
		g.requested(p, grace, at.Add(-time.Nanosecond))
		p.status(o, status, at)
	default:
		p.status(o, status, at)
	}
	p.held = len(o.Finalizers) > 0
	if !p.deleted.IsZero() && !p.held && grace == 0 && p.gone.IsZero() {
		g.left(p, at)
	}
}

func (g *game) begin(o *corev1.Pod, at time.Time) *pod {
	_, static := o.Annotations[corev1.MirrorPodAnnotationKey]
	p := &pod{uid: string(o.UID), namespace: o.Namespace, name: o.Name, created: at, static: static, gated: len(o.Spec.SchedulingGates) > 0,
		always: o.Spec.RestartPolicy == corev1.RestartPolicyAlways, digest: digest(o), running: map[string]time.Time{},
		excludedNamespace: slices.Contains(g.exclude, o.Namespace)}
	if s := o.Spec.TerminationGracePeriodSeconds; s != nil {
		p.specGrace = time.Duration(*s) * time.Second
	}
	if ref := metav1.GetControllerOfNoCopy(o); ref != nil {
		p.ownerKind, p.owner = ref.Kind, string(ref.UID)
	}
	for _, c := range o.Spec.Containers {
		p.containers = append(p.containers, container{name: c.Name, hook: c.Lifecycle != nil && c.Lifecycle.PostStart != nil})
	}
	g.pods[p.uid], g.named[p.namespace+"/"+p.name] = p, p
	g.order = append(g.order, p)
	if p.ownerKind == "StatefulSet" {
		g.replace(p, p.owner+"/"+p.name)
	}
	return p
}

// placed takes the node of a pod.
func (g *game) placed(p *pod, node string, at time.Time) {
	if p.node != "" {
		return
	}
	p.node = node
	if since, ok := g.ready[node]; ok && p.ownerKind == "DaemonSet" && at.Sub(since) < 2*time.Minute {
		p.young = true
	}
	if p.ownerKind == "DaemonSet" {
		g.replace(p, p.owner+"/"+node)
	}
}

// replace finds the predecessor of a pod: of the same owner, with the same name or node.
func (g *game) replace(p *pod, place string) {
	for _, old := range slices.Backward(g.leaving[place]) {
		if old != p && !old.deleted.After(p.created) {
			p.replaces = old
			break
		}
	}
	if p.replaces != nil {
		delete(g.leaving, place)
	}
}

// requested takes the request of a deletion; a second one may shorten the grace period.
func (g *game) requested(p *pod, grace time.Duration, at time.Time) {
	if !p.deleted.IsZero() {
		return
	}
	p.deleted, p.grace = at, grace
	switch {
	case p.ready.IsZero():
	case p.ownerKind == "StatefulSet":
		g.leaving[p.owner+"/"+p.name] = append(g.leaving[p.owner+"/"+p.name], p)
	case p.ownerKind == "DaemonSet":
		g.leaving[p.owner+"/"+p.node] = append(g.leaving[p.owner+"/"+p.node], p)
	}
}

// evicted takes an eviction. The log has neither the condition that the apiserver writes nor its deletion of the pod.
func (g *game) evicted(p *pod, at time.Time) {
	grace := p.specGrace
	if p.node == "" {
		grace = 0
	}
	p.disrupted = true
	g.requested(p, grace, at)
	if grace == 0 && !p.held {
		g.left(p, at)
	}
}

// left takes the end of the object.
func (g *game) left(p *pod, at time.Time) {
	p.gone = at
	if name := p.namespace + "/" + p.name; g.named[name] == p {
		delete(g.named, name)
	}
}

func (p *pod) event(e *corev1.Event, at time.Time) {
	switch e.Reason {
	case "Started":
		for i := range p.containers {
			if c := &p.containers[i]; c.started.high.IsZero() && e.InvolvedObject.FieldPath == "spec.containers{"+c.name+"}" {
				c.started = bounds{at, at}
			}
		}
	case "Killing":
		if !p.deleted.IsZero() && p.noticed.IsZero() {
			p.noticed = at
		}
	}
}

// status takes the marks that a pod's status has. written: the request wrote the status.
func (p *pod) status(o *corev1.Pod, written bool, at time.Time) {
	started, running := p.run(o, at)
	isReady := has(o, corev1.PodReady)
	first(&p.ready, at, isReady)
	phase := o.Status.Phase
	first(&p.ran, at, phase == corev1.PodRunning || phase == corev1.PodSucceeded || phase == corev1.PodFailed && started)
	first(&p.failed, at, phase == corev1.PodFailed && !started)
	p.disrupted = p.disrupted || has(o, corev1.DisruptionTarget)
	if !p.deleted.IsZero() && written {
		first(&p.noticed, at, true)
		first(&p.ended, at, !running && (started || phase == corev1.PodSucceeded || phase == corev1.PodFailed))
	}
	for _, c := range p.changes {
		c.observe(o, p.running, isReady, at)
	}
}

// run reads the states of the containers.
func (p *pod) run(o *corev1.Pod, at time.Time) (started, running bool) {
	p.running = map[string]time.Time{}
	for _, s := range slices.Concat(o.Status.InitContainerStatuses, o.Status.ContainerStatuses) {
		begun := time.Time{}
		if r := s.State.Running; r != nil {
			begun, running = r.StartedAt.Time, true
			p.running[s.Name] = begun
		}
		for _, t := range []*corev1.ContainerStateTerminated{s.State.Terminated, s.LastTerminationState.Terminated} {
			if t != nil && t.Reason != "StartError" && t.Reason != "ContainerCannotRun" && !t.StartedAt.IsZero() {
				begun = t.StartedAt.Time
			}
		}
		if begun.IsZero() {
			continue
		}
		started = true
		for i := range p.containers {
			if c := &p.containers[i]; c.name == s.Name {
				if c.started.high.IsZero() {
					c.started = bounds{begun, begun.Add(time.Second)}
				}
				first(&c.shown, at, true)
			}
		}
	}
	return started, running
}

// changed begins an upgrade in place.
func (p *pod) changed(o *corev1.Pod, at time.Time) {
	now := digest(o)
	if now == p.digest {
		return
	}
	before := p.digest
	p.digest = now
	if p.ready.IsZero() || !p.deleted.IsZero() || o.DeletionTimestamp != nil {
		return
	}
	c := &change{generation: o.Generation, at: at, old: p.running, images: map[string]bool{}}
	old := images(before)
	for name, image := range images(now) {
		c.images[name] = old[name] != image
	}
	p.changes = append(p.changes, c)
}

func (c *change) observe(o *corev1.Pod, running map[string]time.Time, isReady bool, at time.Time) {
	if !at.After(c.at) {
		return
	}
	first(&c.noticed, at, o.Status.ObservedGeneration >= c.generation)
	current := true
	for name, image := range c.images {
		begun, runs := running[name]
		restarted := runs && !begun.Equal(c.old[name])
		first(&c.stopped, at, image && (restarted || !runs))
		current = current && runs && (restarted || !image)
	}
	resizing := has(o, corev1.PodResizePending) || has(o, corev1.PodResizeInProgress)
	first(&c.done, at, current && isReady && !resizing && !c.noticed.IsZero())
}

// first sets a time once.
func first(to *time.Time, at time.Time, holds bool) {
	if holds && to.IsZero() {
		*to = at
	}
}

func has(o *corev1.Pod, kind corev1.PodConditionType) bool {
	return slices.ContainsFunc(o.Status.Conditions, func(c corev1.PodCondition) bool { return c.Type == kind && c.Status == corev1.ConditionTrue })
}

// digest is the part of a pod that an upgrade in place changes: a line for each container.
func digest(o *corev1.Pod) (text string) {
	for _, c := range o.Spec.Containers {
		r, l := c.Resources.Requests, c.Resources.Limits
		text += fmt.Sprintf("%s %s %s %s %s %s\n", c.Name, c.Image, r.Cpu(), r.Memory(), l.Cpu(), l.Memory())
	}
	return text
}

// images returns the images of a digest, by container.
func images(digest string) map[string]string {
	all := map[string]string{}
	for line := range strings.Lines(digest) {
		if words := strings.Fields(line); len(words) > 1 {
			all[words[0]] = words[1]
		}
	}
	return all
}
