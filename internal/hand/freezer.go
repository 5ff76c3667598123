package hand

import (
	"errors"
	"fmt"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
)

// Thaw wakes a process of a pod that sits in a frozen cgroup: on v1 such a process cannot even be killed. Cgroups are
// thawed from the process's own up to the pod's, never above. It reports whether any was frozen.
func (d *Hand) Thaw(p Process) (bool, error) {
	fd, err := d.openProcess(p)
	if errors.Is(err, errGone) {
		return false, nil
	}
	if err != nil {
		return false, err
	}
	unix.Close(fd)
	cgroups, err := d.host.ProcCgroups(p.PID)
	if err != nil {
		return false, err
	}
	mounts, err := d.host.Mounts()
	if err != nil {
		return false, err
	}
	thawed := false
	for controllers, name := range cgroups {
		file, frozen, value := freezerFile(controllers)
		point := hierarchy(mounts, controllers)
		if file == "" || point == "" {
			continue
		}
		for ; d.ofPod(name, p.UID); name = path.Dir(name) {
			now, err := d.host.Files.Text(path.Join(point, name, file))
			if err != nil || !slices.Contains(frozen, now) {
				continue // an error: the cgroup has gone meanwhile, and its processes with it
			}
			if err := writeBelow(point, path.Join(name, file), value); err != nil {
				return thawed, fmt.Errorf("thaw %s: %w", name, err)
			}
			thawed = true
		}
	}
	return thawed, nil
}

// freezerFile returns the file that freezes a cgroup, what it says when frozen, and what thaws it.
// https://docs.kernel.org/admin-guide/cgroup-v1/freezer-subsystem.html and cgroup-v2.html
func freezerFile(controllers string) (file string, frozen []string, thaw string) {
	switch {
	case controllers == "":
		return "cgroup.freeze", []string{"1"}, "0"
	case slices.Contains(strings.Split(controllers, ","), "freezer"):
		return "freezer.state", []string{"FROZEN", "FREEZING"}, "THAWED"
	}
	return "", nil, ""
}

// hierarchy returns where the hierarchy with the given controllers (as in /proc/PID/cgroup) is mounted whole.
func hierarchy(mounts []host.Mount, controllers string) string {
	for _, m := range mounts {
		if m.Root != "/" {
			continue
		}
		if controllers == "" && m.FSType == "cgroup2" {
			return m.Point
		}
		if controllers != "" && m.FSType == "cgroup" && containsAll(m.SuperOptions, strings.Split(controllers, ",")) {
			return m.Point
		}
	}
	return ""
}

func containsAll(all, wanted []string) bool {
	for _, one := range wanted {
		if !slices.Contains(all, one) {
			return false
		}
	}
	return true
}

func (d *Hand) ofPod(cgroup, uid string) bool {
	found, _, ok := d.host.Paths.PodOfCgroup(cgroup)
	return ok && found == uid && uid != ""
}

// KillCgroup kills all processes in the v2 cgroup of a pod and below it, forking ones too (Linux 5.14).
func (d *Hand) KillCgroup(c Cgroup) error {
	point, name, err := d.placeCgroup(c)
	if err != nil {
		return err
	}
	dir, err := openCgroup(point, name, c.File)
	if errors.Is(err, errGone) {
		return nil
	}
	if err != nil {
		return err
	}
	defer unix.Close(dir)
	return write(dir, "cgroup.kill", "1")
}

// writeBelow writes to a file below a trusted directory.
func writeBelow(base, name, value string) error {
	fd, err := openBase(base)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	return write(fd, strings.TrimPrefix(name, "/"), value)
}

func write(dir int, name, value string) error {
	fd, err := openBelow(dir, name, unix.O_WRONLY, resolveInside)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if _, err := unix.Write(fd, []byte(value)); err != nil {
		return fmt.Errorf("write %q to %s: %w", value, name, err)
	}
	return nil
}
