package tasks

import (
	"cmp"
	"context"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
)

// ownerNames finds the owners of processes.
type ownerNames struct {
	host *host.Host
	pods map[string]string // UID to the name of the pod
}

// of returns the owner of a process: "pod <uid>", a service such as "system.slice/kubelet.service", or its own name.
func (o ownerNames) of(pid int) string {
	if uid, ok := checkkit.PodOfProcess(o.host, pid); ok {
		o.pods[uid] = "pod " + uid
		return "pod " + uid
	}
	if cgroups, err := o.host.ProcCgroups(pid); err == nil {
		if service := serviceOf(cgroups); service != "" {
			return service
		}
	}
	stat, err := o.host.ProcStat(pid)
	if err != nil {
		return "an exited process"
	}
	return "process " + stat.Comm
}

// name asks kubelet for the names of the pods so far; without an answer they keep their UIDs.
func (o ownerNames) name(ctx context.Context) {
	if len(o.pods) == 0 {
		return
	}
	known := checkkit.KubeletNames(ctx, o.host)
	for uid, name := range o.pods {
		o.pods[uid] = cmp.Or(known[uid], name)
	}
}

// replace replaces UIDs by names.
func (o ownerNames) replace(text string) string {
	for uid, name := range o.pods {
		text = strings.ReplaceAll(text, "pod "+uid, name)
	}
	return text
}
