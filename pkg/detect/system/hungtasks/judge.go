package hungtasks

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/discover"
	"github.com/nodeagent/nodeagent/pkg/detect/checkkit"
	"github.com/nodeagent/nodeagent/pkg/detect/system/tasks"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// hungGroup holds all hung tasks of one name, which is also the subject of the kernel's log line.
type hungGroup struct {
	name, reason string
	tasks        []*blockedTask
	pods         map[string]bool // UIDs
}

// maxHungGroups bounds the number of reported names.
const maxHungGroups = 20

// hungFindings makes one finding for each name, the one blocked longest first.
func hungFindings(ctx context.Context, h *host.Host, hung []*blockedTask, now time.Duration) []finding.Finding {
	daemons, _ := discover.Daemons(ctx, h) // they only make the reason more specific
	slices.SortFunc(hung, func(a, b *blockedTask) int {
		return cmp.Or(cmp.Compare(a.since, b.since), cmp.Compare(a.ID.Tid, b.ID.Tid))
	})
	groups := make(map[string]*hungGroup)
	var order []*hungGroup
	for i, t := range hung {
		name := checkkit.Sanitize(t.Comm, 64)
		g := groups[name]
		if g == nil {
			if len(groups) == maxHungGroups {
				continue
			}
			g = &hungGroup{name: name, reason: reasonTaskHung, pods: make(map[string]bool)}
			groups[name], order = g, append(order, g)
		}
		g.tasks = append(g.tasks, t)
		if i < tasks.MaxOwners {
			g.explain(h, t, daemons)
		}
	}
	findings := make([]finding.Finding, 0, len(order))
	for _, g := range order {
		findings = append(findings, g.finding(ctx, h, now))
	}
	addSuspended(findings, h.Files)
	return findings
}

// explain finds the owner of a task. A name is no evidence: any program can call itself runc, so only tasks outside
// pods count.
func (g *hungGroup) explain(h *host.Host, t *blockedTask, daemons []discover.Daemon) {
	for _, d := range daemons {
		switch {
		case d.PID != t.PID:
		case d.Role == "kubelet":
			g.reason = reasonKubeletTaskHung
		default:
			g.reason = reasonRuntimeTaskHung
		}
	}
	if uid, ok := checkkit.PodOfProcess(h, t.PID); ok {
		g.pods[uid] = true
	} else if g.reason == reasonTaskHung && (t.Comm == "runc" || t.Comm == "crun" || t.Comm == "conmon" ||
		strings.HasPrefix(t.Comm, "containerd-shim")) {
		g.reason = reasonRuntimeTaskHung
	}
}

func (g *hungGroup) finding(ctx context.Context, h *host.Host, now time.Duration) finding.Finding {
	where, ids := make(map[string]float64), make([]string, 0, len(g.tasks))
	for _, t := range g.tasks {
		ids = append(ids, strconv.Itoa(t.ID.Tid))
		where[cmp.Or(t.Wchan, "?")]++
	}
	var places []string
	for _, place := range checkkit.Largest(where) {
		places = append(places, fmt.Sprintf("%.0f in %s", where[place], place))
	}
	what := "a task called " + g.name + " has"
	if len(g.tasks) > 1 {
		what = fmt.Sprintf("%d tasks called %s have", len(g.tasks), g.name)
	}
	waited := now - g.tasks[0].since
	f := finding.Finding{
		Subject: finding.Subject{Kind: "process", Name: g.name}, Severity: finding.Warning, Reason: g.reason,
		Message: fmt.Sprintf("%s been blocked in the kernel for at least %s: %s", what,
			waited.Round(time.Second), finding.JoinFirst(places, 3)),
		Facts: map[string]string{
			"tasks": strconv.Itoa(len(g.tasks)), "tids": finding.JoinFirst(ids, 20),
			"waitsIn": finding.JoinFirst(places, 10),
			"seconds": strconv.Itoa(int(waited.Seconds())),
		},
	}
	checkkit.AddPods(&f, "; of pods ", checkkit.PodNames(ctx, h, slices.Sorted(maps.Keys(g.pods))))
	return f
}

// A suspended mapped device holds back all I/O until it is resumed:
//
//	/sys/block/dm-3/dm/suspended   1     lvm and multipath suspend a device for milliseconds, while they change its table
//	/sys/block/dm-3/dm/name        vg0-data
//
// A tool that died in between leaves it suspended. The held I/O is not in flight, so no count of I/O shows it. The
// files are read only if tasks hang.
//
// https://www.kernel.org/doc/Documentation/ABI/testing/sysfs-block-dm

// maxSuspended bounds how many are named.
const maxSuspended = 5

// suspendedDevices returns the names of suspended mapped devices. It skips unreadable ones, because the names only make
// a finding more specific.
func suspendedDevices(files host.Files) []string {
	names, err := checkkit.BlockNames(files)
	if err != nil {
		return nil
	}
	var suspended []string
	for _, name := range names {
		if !strings.HasPrefix(name, "dm-") {
			continue
		}
		state, err := files.Text("/sys/block/" + name + "/dm/suspended")
		if err != nil || state != "1" {
			continue
		}
		mapped, err := checkkit.OptionalDeviceText(files, "/sys/block/"+name+"/dm/name")
		if err != nil || mapped == "" {
			mapped = name
		}
		suspended = append(suspended, mapped)
	}
	return suspended
}

// addSuspended names suspended devices as a possible cause.
func addSuspended(findings []finding.Finding, files host.Files) {
	suspended := suspendedDevices(files)
	if len(suspended) == 0 {
		return
	}
	is := "is"
	if len(suspended) > 1 {
		is = "are"
	}
	text := finding.JoinFirst(suspended, maxSuspended)
	for i := range findings {
		findings[i].Facts["suspended"] = text
		findings[i].Message += fmt.Sprintf("; of mapped devices %s %s suspended, which holds back all I/O to it", text,
			is)
	}
}
