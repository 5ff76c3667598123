package verdict

import (
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// doubtByName returns why an object is not proven although kubelet's names do not include its pod.
func (e *evaluation) doubtByName(o *object.Object, witnesses map[string]object.Answer) string {
	switch {
	case !e.inventory.Kubelet.ByName():
		return ""
	case e.inventory.Runtime.Running[o.Pod.UID]:
		return "it is running, and only kubelet's /pods would show whether kubelet is still terminating it"
	case witnesses[object.Kubelet] != object.Denies:
		return "kubelet " + string(witnesses[object.Kubelet])
	}
	if why := e.inventory.MayHaveEnded(o.Pod.UID); why != "" {
		return "it may be a pod that has ended, which kubelet's podresources lack: " + why
	}
	return ""
}
