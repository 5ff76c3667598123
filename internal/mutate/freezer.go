package mutate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Thaw wakes a process of a pod in a frozen cgroup: on v1 such a process cannot even be killed. It thaws cgroups from
// the process's own up to the pod's, never above, and reports whether any was frozen.
func (d *Mutator) Thaw(p Process) (bool, error) {
	fd, err := d.openProcess(p)
	if err != nil {
		return false, hosterr.Ignore(err, errGone)
	}
	unix.Close(fd)
	cgroups, err := d.host.ProcCgroups(p.PID)
	if err != nil {
		return false, err
	}
	mounts, err := mount.Table(d.host)
	if err != nil {
		return false, err
	}
	thawed := false
	for controller, name := range cgroups {
		file, frozen, value := freezerFile(controller)
		point := hierarchy(mounts, controller)
		if file == "" || point == "" {
			continue
		}
		now, err := d.thawUp(p, point, name, file, frozen, value)
		thawed = thawed || now
		if err != nil {
			return thawed, fmt.Errorf("thaw %s: %w", name, err)
		}
	}
	return thawed, nil
}

// thawUp thaws a cgroup of a pod and those above it, the pod's own last. All access goes through the pod's open
// directory, because the containers own the names below it.
func (d *Mutator) thawUp(p Process, point, name, file string, frozen []string, value string) (thawed bool, err error) {
	var chain []string
	for _, err := d.podCgroup(name, p.UID, p.Driver); err == nil; _, err = d.podCgroup(name, p.UID, p.Driver) {
		chain = append(chain, name)
		name = path.Dir(name)
	}
	if len(chain) == 0 {
		return false, nil
	}
	top := chain[len(chain)-1]
	pod, err := child.OpenCgroup(point, top, nil)
	if err != nil {
		return false, hosterr.Ignore(err, errGone)
	}
	defer unix.Close(pod)
	for _, name := range chain {
		file := path.Join(".", strings.TrimPrefix(name, top), file)
		now, err := child.ReadBelow(pod, file)
		if err != nil || !slices.Contains(frozen, strings.TrimSpace(string(now))) {
			continue // on an error the cgroup and its processes have gone meanwhile
		}
		if err := child.Write(pod, file, value); err != nil {
			return thawed, err
		}
		thawed = true
	}
	return thawed, nil
}

// freezerFile returns the file that freezes a cgroup, its content when frozen, and the value that thaws it.
// https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html and cgroup-v2.html
func freezerFile(controller string) (file string, frozen []string, thaw string) {
	switch {
	case controller == "":
		return "cgroup.freeze", []string{"1"}, "0"
	case controller == "freezer":
		return "freezer.state", []string{"FROZEN", "FREEZING"}, "THAWED"
	}
	return "", nil, ""
}

// hierarchy returns the mount point of a controller's complete hierarchy; the name for cgroup v2 is "".
func hierarchy(mounts []mount.Mount, controller string) string {
	for _, m := range mounts {
		if m.Root == "/" && (controller == "" && m.FSType == "cgroup2" ||
			controller != "" && m.FSType == "cgroup" && slices.Contains(m.SuperOptions, controller)) {
			return m.Point
		}
	}
	return ""
}
