package kinds

import (
	"context"
	"errors"
	"fmt"
	"path"
	"strconv"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	hostcri "github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/internal/host/proc"
	"github.com/nodeagent/nodeagent/pkg/inspect/hostscan"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

func shimSpec() Spec {
	return Spec{
		Kind: object.Shim, List: listShims, GoneFrom: ofSandbox, OptIn: true,
		What: "a shim of the runtime: `containerd-shim` in the namespace `k8s.io`, or CRI-O's `conmon`, which is only " +
			"reported",
		Harm: "keeps memory, a PID, a bundle and often a whole container that the scheduler counts as free",
	}
}

// listShims lists the shims of the runtime. A shim with a process in the cgroup of a pod belongs to that pod too: if
// the pod lives, the shim is no leftover.
func listShims(ctx context.Context, scan *hostscan.Scan) ([]object.Object, error) {
	table, err := scan.Host.ProcessTable(ctx, time.Minute) // shared with others that do not need a newer one
	if err != nil {
		return nil, err
	}
	children := make(map[int]int)
	for _, p := range table {
		if proc.Alive(p) {
			children[p.PPID]++
		}
	}
	pods, err := scan.PodsBelow()
	if err != nil {
		return nil, err
	}
	var objects []object.Object
	var failures []error
	for _, p := range table {
		if !hostcri.IsShim(p.Comm) || !proc.Alive(p) {
			continue
		}
		o, err := shimObject(scan, p, children[p.PID])
		if uid, ok := pods[p.PID]; ok && uid == "" {
			o.Doubt = "processes of several pods are below it"
		} else {
			o.Pod.UID = uid
		}
		if err != nil {
			failures = append(failures, err)
		} else if o.ID != "" {
			objects = append(objects, o)
		}
	}
	return objects, errors.Join(failures[:min(len(failures), 3)]...)
}

// shimObject returns the object of a process that is a shim of Kubernetes; an empty one if it has ended or is no shim.
func shimObject(s *hostscan.Scan, p proc.Stat, children int) (object.Object, error) {
	h := s.Host
	now, err := h.ProcStat(p.PID)
	if proc.Gone(err) || err == nil && now.StartTime != p.StartTime {
		return object.Object{}, nil
	}
	if err != nil {
		return object.Object{}, fmt.Errorf("shim %d: %w", p.PID, err)
	}
	args, err := h.ProcArgs(p.PID)
	if proc.Gone(err) {
		return object.Object{}, nil
	}
	if err != nil {
		return object.Object{}, fmt.Errorf("shim %d: %w", p.PID, err)
	}
	shim := hostcri.ParseShim(args)
	if shim.ID == "" {
		return object.Object{}, nil
	}
	o := object.Object{
		Kind: object.Shim, ID: fmt.Sprintf("%s#%d", shim.ID, p.PID), ContainerID: shim.ID,
		Identity: object.Identity{Process: object.ProcessID{PID: p.PID, StartTime: p.StartTime}},
		Facts: object.Facts("pid", strconv.Itoa(p.PID), "command", path.Base(args[0]), "state", string(now.State),
			"children", strconv.Itoa(children)),
	}
	switch {
	case !host.IsContainerID(shim.ID):
		o.Foreign = "not created by a CRI runtime: its ID has another format"
	case path.Base(args[0]) != "conmon" && socketPath(s, shim.Address) != socketPath(s, h.Paths.ContainerdSocket):
		o.Foreign = "of another containerd, " + strconv.QuoteToGraphic(shim.Address)
	case discover.Nested(h, p.PID):
		o.Foreign = "in a container, which may be a node itself"
	}
	return o, nil
}

// socketPath returns the path of a socket without symbolic links in its directory.
func socketPath(s *hostscan.Scan, socket string) string {
	return path.Join(hostscan.Resolve(s.Host.Files, path.Dir(path.Clean("/"+socket))), path.Base(socket))
}
