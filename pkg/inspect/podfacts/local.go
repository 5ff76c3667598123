package podfacts

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/nodeagent/nodeagent/internal/host/cgroup"
	"github.com/nodeagent/nodeagent/internal/host/holders"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/host/podstate"
	"github.com/nodeagent/nodeagent/pkg/inspect/podstage"
)

// maxMounts bounds the mounts of one pod in an answer.
const maxMounts = 100

// local reads the node's files.
func (g *gatherer) local(ctx context.Context) podstage.Local {
	l, err := within(ctx, localLimit, "the node's files", func(context.Context) (podstage.Local, error) {
		return g.readLocal(), nil
	})
	if err != nil {
		return podstage.Local{DirectoryErr: err, MountsErr: err, MissingErr: err, CgroupsErr: err, AttachmentsErr: err}
	}
	return l
}

func (g *gatherer) readLocal() (l podstage.Local) {
	uid := g.facts.UID
	if uid == "" {
		return l
	}
	names, err := g.host.Files.List(podstate.Dir(g.host, ""))
	l.DirectoryErr = err
	if slices.Contains(names, uid) {
		l.Directory = podstate.Dir(g.host, uid)
	}
	mounts, err := mount.Table(g.host)
	if l.MountsErr = err; err != nil {
		l.CgroupsErr = err // they are found by it
		return l
	}
	for _, m := range podstate.MountsOf(g.host, mounts, uid) {
		if len(l.Mounts) < maxMounts {
			l.Mounts = append(l.Mounts, podstage.Mount{Point: m.Point, FSType: m.FSType, Source: m.Source})
		}
	}
	g.readVolumes(mounts, &l)
	cgroups, err := podstate.CgroupsOf(g.host, mounts)
	l.CgroupsErr = err
	for _, c := range cgroups[uid] {
		l.Cgroups = append(l.Cgroups, c.Dir())
	}
	if l.Frozen, l.Processes = podstate.ProcessesOf(g.host, cgroups[uid]); l.Frozen != "" {
		l.Thaw = thaw(cgroups[uid], l.Frozen)
	}
	l.Attachments, l.AttachmentsErr = g.attachments()
	return l
}

// readVolumes finds the volumes that are not set up. A pod without a directory has no volume set up.
func (g *gatherer) readVolumes(mounts []mount.Mount, l *podstage.Local) {
	pod := g.facts.Apiserver.Pod
	if pod == nil || l.Directory == "" || !podstate.IsStarting(pod) {
		return
	}
	if l.Missing, l.MissingErr = podstate.MissingVolumes(g.host, mounts, pod); errors.Is(l.MissingErr, fs.ErrNotExist) {
		l.MissingErr = nil // kubelet is about to make it
	}
}

// thaw is the command that thaws a cgroup.
func thaw(cgroups []cgroup.PodCgroup, frozen string) string {
	for _, c := range cgroups {
		switch {
		case c.Path != frozen:
		case c.Hierarchy.V2:
			return "echo 0 > " + path.Join(c.Dir(), "cgroup.freeze")
		default:
			return "echo THAWED > " + path.Join(c.Dir(), "freezer.state")
		}
	}
	return "thaw " + frozen
}

// attachments names the networks that the pod is attached to.
func (g *gatherer) attachments() (found []string, err error) {
	all, err := podstate.AttachmentsOf(g.host, g.facts.UID, g.facts.Runtime.Sandboxes)
	for _, a := range all {
		found = append(found, strings.TrimSpace(a.Network+" "+strings.Join(a.Addresses, " ")))
	}
	return found, err
}

// holders finds the processes that keep the pod's mounts busy.
func (g *gatherer) holders(ctx context.Context) {
	l := &g.facts.Local
	table, err := mount.Table(g.host)
	if err != nil {
		l.HoldersErr = err
		return
	}
	things := make([]holders.Holdable, len(l.Mounts))
	for i, m := range l.Mounts {
		things[i].Path = m.Point
		if n := slices.IndexFunc(table, func(t mount.Mount) bool { return t.Point == m.Point }); n >= 0 {
			things[i].Mount = &table[n]
		}
	}
	type search struct {
		found      [][]holders.Holding
		incomplete string
	}
	done, err := within(ctx, holdersLimit, "the search for holders", func(ctx context.Context) (s search, err error) {
		s.found, s.incomplete, err = holders.Holders(ctx, g.host, things)
		return s, err
	})
	if l.HoldersErr = err; err == nil && done.incomplete != "" {
		l.HoldersErr = fmt.Errorf("the search for holders was cut short %s", done.incomplete)
	}
	for i, held := range done.found {
		for _, holding := range held {
			l.Mounts[i].Holders = append(l.Mounts[i].Holders, podstage.Holder{PID: holding.PID, Command: holding.Comm,
				How: holding.How, Pod: cmp.Or(g.names[holding.UID], holding.UID)})
		}
	}
}
