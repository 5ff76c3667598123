package mutate

import (
	"context"
	"path"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/child"
)

// Cgroup is the identity of one cgroup in one hierarchy.
type Cgroup struct {
	Dir    string // such as /sys/fs/cgroup/memory/kubepods/pod…
	UID    string // the pod it belongs to
	Driver string // of our kubelet, as evaluated: only its tree is ours. The configured one takes precedence
	File   FileID // of the directory
}

// RemoveCgroup removes an empty cgroup of a pod in one hierarchy, with the empty ones below it, leaf first. ErrBusy if
// a process is in any of them. If it belongs to a unit that systemd made for kubelet or the runtime, systemd is asked
// to stop that first.
//
// No content of a cgroup is ever deleted or moved: rmdir is the kernel's own guard against a process that enters
// meanwhile.
func (d *Mutator) RemoveCgroup(ctx context.Context, c Cgroup) error {
	at, err := d.placeCgroup(c)
	if err != nil {
		return err
	}
	if err := d.stopUnit(ctx, c, at); err != nil {
		return err
	}
	_, err = d.do(ctx, child.Request{
		Op: child.OpCgroup, Base: at.mount.Point, Name: []byte(strings.TrimPrefix(at.name, "/")), File: c.File,
		ForceEmpty: true,
	})
	return err
}

// cgroupPlace is the location of a pod's cgroup.
type cgroupPlace struct {
	host.CgroupPlace

	mount  mount.Mount   // of the hierarchy
	mounts []mount.Mount // of all hierarchies
	name   string        // its path in the hierarchy
}

// placeCgroup finds the hierarchy of a cgroup and makes sure that the cgroup belongs to the pod.
func (d *Mutator) placeCgroup(c Cgroup) (cgroupPlace, error) {
	mounts, err := mount.Table(d.host)
	if err != nil {
		return cgroupPlace{}, err
	}
	var at cgroupPlace
	for _, m := range mounts {
		if m.Root != "/" || m.FSType != "cgroup" && m.FSType != "cgroup2" {
			continue
		}
		at.mounts = append(at.mounts, m)
		if len(m.Point) > len(at.mount.Point) && mount.Below(c.Dir, m.Point) {
			at.mount = m
		}
	}
	if at.mount.Point == "" || path.Clean(c.Dir) != c.Dir {
		return cgroupPlace{}, refuse("%s is in no mounted hierarchy", c.Dir)
	}
	at.name = "/" + strings.TrimPrefix(c.Dir[len(at.mount.Point):], "/")
	at.CgroupPlace, err = d.podCgroup(at.name, c.UID, c.Driver)
	return at, err
}

// podCgroup makes sure that a cgroup is a pod's, or below it, in the tree of our kubelet. A host has a tree for each
// cgroup driver, and another kubelet may keep its pods in the other one.
func (d *Mutator) podCgroup(cgroup, uid, driver string) (host.CgroupPlace, error) {
	paths := d.host.Paths
	if paths.CgroupDriver == "" {
		paths.CgroupDriver = driver
	}
	if paths.CgroupDriver == "" {
		return host.CgroupPlace{}, refuse("%s: it is not known which cgroup driver our kubelet has", cgroup)
	}
	place, ok := paths.PlaceOfCgroup(cgroup)
	if !ok || place.UID != uid || uid == "" {
		return host.CgroupPlace{}, refuse("%s is no cgroup of pod %s", cgroup, uid)
	}
	return place, nil
}
