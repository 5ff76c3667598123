package witness

import (
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// Answers returns the answer of every witness about o. first is when o was first seen: an older list of the apiserver
// is no proof.
func (t *Inventory) Answers(o *object.Object, first finding.Timestamp) map[string]object.Answer {
	return map[string]object.Answer{
		object.Apiserver:  t.ApiserverAnswer(o, first),
		object.Kubelet:    t.KubeletAnswer(o, first),
		object.Runtime:    t.runtimeAnswer(o),
		object.Containerd: t.containerdAnswer(o),
	}
}

func (t *Inventory) ApiserverAnswer(o *object.Object, first finding.Timestamp) object.Answer {
	c := &t.Cluster
	switch pod, ok := c.Pods[o.Pod.UID]; {
	case !c.Asked:
		return object.NotAsked
	case c.Err != nil:
		return object.Unanswered(c.Err)
	case ok:
		return object.Known("%s/%s %s", pod.Namespace, pod.Name, pod.Phase)
	case c.older(first):
		return object.NotAsked + ": since it was first seen"
	}
	return object.Denies
}

func (t *Inventory) KubeletAnswer(o *object.Object, first finding.Timestamp) object.Answer {
	pod, ok := t.Kubelet.Pods[o.Pod.UID]
	if !ok {
		pod, ok = t.Kubelet.Again[o.Pod.UID]
	}
	switch {
	case !t.Kubelet.Asked:
		return object.NotAsked
	case t.Kubelet.Err != nil:
		return object.Unanswered(t.Kubelet.Err)
	case t.Kubelet.ByName():
		return t.answerByName(o, first)
	case ok:
		return object.Known("%s/%s %s", pod.Namespace, pod.Name, pod.Phase)
	}
	return object.Denies
}

func (t *Inventory) runtimeAnswer(o *object.Object) object.Answer {
	switch {
	case !t.Runtime.Asked:
		return object.NotAsked
	case t.Runtime.Err != nil:
		return object.Unanswered(t.Runtime.Err)
	}
	if o.SandboxID != "" {
		if s, ok := t.Runtime.Sandboxes[o.SandboxID]; ok {
			return object.Known("sandbox %s", s.State)
		}
		if o.Kind != object.Container {
			return object.Denies
		}
	}
	if _, ok := t.Runtime.Containers[o.ContainerID]; ok {
		return object.Known("container")
	}
	if s, ok := t.Runtime.Sandboxes[o.ContainerID]; ok {
		return object.Known("sandbox %s", s.State)
	}
	if s, ok := t.Runtime.Pods[o.Pod.UID]; ok && o.Pod.UID != "" {
		return object.Known("sandbox %s %s", s.ID, s.State)
	}
	return object.Denies
}

func (t *Inventory) containerdAnswer(o *object.Object) object.Answer {
	c := &t.Containerd
	switch {
	case c.Other != "":
		return object.NotAsked + object.Answer(": the runtime is "+c.Other)
	case !c.Asked:
		return object.NotAsked
	case c.Err != nil:
		return object.Unanswered(c.Err)
	}
	for _, id := range []string{o.SandboxID, o.ContainerID} {
		if what, ok := c.Known[id]; ok && id != "" && (o.Kind != object.Lease || what != LeaseName) {
			return object.Known("%s %s", what, id)
		}
	}
	if o.SandboxID == "" && c.Pods[o.Pod.UID] {
		return object.Known("a container of this pod")
	}
	return object.Denies
}
