package inspect

import (
	"fmt"
	"strings"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// The witnesses, as Assessment.Witnesses names them.
const (
	Apiserver  = "apiserver"
	Kubelet    = "kubelet"
	Runtime    = "runtime"
	Containerd = "containerd"
)

// networked reports whether objects of a kind belong to the network of a sandbox. The witnesses that must deny an object
// before it can be a leftover are the apiserver and kubelet, and those of its KindSpec.GoneFrom:
//
//	kind                                                apiserver  kubelet  runtime      containerd
//	sandbox, container                                  UID        UID      -            -
//	process, mount, cgroup, pod-directory               UID        UID      -            -
//	cni-attachment, netns, link                         UID        UID      sandbox ID   sandbox ID
//	systemd-unit, log-link                              UID        UID      container    container
//	pod-logs                                            UID        UID      -            -
//	other kinds that are only reported                  UID        UID      -            -
//	lease                                               UID        UID      sandbox ID   container, sandbox, task
//	containerd-container                                UID        UID      ID, pod      -
//	task, shim, rootfs, snapshot, run-file              UID        UID      ID, pod      ID, pod
//	sandbox-directory, ipam-lease, port-mapping         UID        UID      sandbox ID   sandbox ID
//
// When the runtime still lists the sandbox of a pod that is gone, that sandbox is itself the leftover, so it is no
// evidence for the pod's other objects. But as long as the runtime knows the sandbox, its network is released by
// removing the sandbox, and never without the runtime. A lease also means that containerd knows a sandbox, until it is
// proven to be a leftover itself. Every witness must answer for every kind.
func (k Kind) networked() bool { return k == CNIAttachment || k == Netns || k == Link }

// answers returns the answer of every witness about o. first is when o was first seen: an older list of the apiserver
// proves nothing.
func (t *Inventory) answers(o *Object, first finding.Timestamp) map[string]Answer {
	return map[string]Answer{
		Apiserver:  t.apiserverAnswer(o, first),
		Kubelet:    t.kubeletAnswer(o, first),
		Runtime:    t.runtimeAnswer(o),
		Containerd: t.containerdAnswer(o),
	}
}

func noAnswer(err error) Answer { return NoAnswer + Answer(": "+err.Error()) }

func knows(format string, args ...any) Answer {
	return Knows + Answer(": "+fmt.Sprintf(format, args...))
}

// confirms reports whether a is Knows, whatever details follow.
func (a Answer) confirms() bool {
	return a == Knows || strings.HasPrefix(string(a), string(Knows)+":")
}

func (t *Inventory) apiserverAnswer(o *Object, first finding.Timestamp) Answer {
	c := &t.Cluster
	switch pod, ok := c.Pods[o.Pod.UID]; {
	case !c.Asked:
		return NotAsked
	case c.Err != nil:
		return noAnswer(c.Err)
	case ok:
		return knows("%s/%s %s", pod.Namespace, pod.Name, pod.Phase)
	case c.older(first):
		return NotAsked + ": since it was first seen"
	}
	return Denies
}

func (t *Inventory) kubeletAnswer(o *Object, first finding.Timestamp) Answer {
	pod, ok := t.Kubelet.Pods[o.Pod.UID]
	if !ok {
		pod, ok = t.Kubelet.Again[o.Pod.UID]
	}
	switch {
	case !t.Kubelet.Asked:
		return NotAsked
	case t.Kubelet.Err != nil:
		return noAnswer(t.Kubelet.Err)
	case t.Kubelet.byName():
		return t.answerByName(o, first)
	case ok:
		return knows("%s/%s %s", pod.Namespace, pod.Name, pod.Phase)
	}
	return Denies
}

func (t *Inventory) runtimeAnswer(o *Object) Answer {
	switch {
	case !t.Runtime.Asked:
		return NotAsked
	case t.Runtime.Err != nil:
		return noAnswer(t.Runtime.Err)
	}
	if o.SandboxID != "" {
		if s, ok := t.Runtime.Sandboxes[o.SandboxID]; ok {
			return knows("sandbox %s", s.State)
		}
		if o.Kind != Container {
			return Denies
		}
	}
	if _, ok := t.Runtime.Containers[o.ContainerID]; ok {
		return knows("container")
	}
	if s, ok := t.Runtime.Sandboxes[o.ContainerID]; ok {
		return knows("sandbox %s", s.State)
	}
	if s, ok := t.Runtime.Pods[o.Pod.UID]; ok && o.Pod.UID != "" {
		return knows("sandbox %s %s", s.ID, s.State)
	}
	return Denies
}

func (t *Inventory) containerdAnswer(o *Object) Answer {
	c := &t.Containerd
	switch {
	case c.Other != "":
		return NotAsked + Answer(": the runtime is "+c.Other)
	case !c.Asked:
		return NotAsked
	case c.Err != nil:
		return noAnswer(c.Err)
	}
	for _, id := range []string{o.SandboxID, o.ContainerID} {
		if what, ok := c.Known[id]; ok && id != "" && (o.Kind != Lease || what != leaseName) {
			return knows("%s %s", what, id)
		}
	}
	if o.SandboxID == "" && c.Pods[o.Pod.UID] {
		return knows("a container of this pod")
	}
	return Denies
}
