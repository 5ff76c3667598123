package repair

import (
	"context"
	"crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/cri"
	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
	"github.com/nodeagent/nodeagent/internal/host/probe"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/detect/kubernetes"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/remediate/release"
)

const mib = 1 << 20

// realDisk is a filesystem with the content of a node's only disk: kubelet's directory with a living pod, a containerd
// that runs it, its logs, a journal, core dumps, the quarantine, and the agent's state. Only its clock is fake: it is
// five days ahead, so that newly made files are old.
type realDisk struct {
	*mutatetest.Node
	t          *testing.T
	containerd *mutatetest.Containerd
	ahead      time.Duration
	check      detect.Check
	runner     *Runner
	stateDir   string
	leaking    bool     // a writer is as fast as the clean-up
	living     []string // directories of the living pod: volumes, logs, root filesystem
	journals   string
}

// newRealDisk needs a TMPDIR on the filesystem.
func newRealDisk(t *testing.T) *realDisk {
	t.Helper()
	c := mutatetest.StartContainerd(t)
	d := &realDisk{t: t, containerd: c, ahead: 5 * day, check: kubernetes.Evictions(),
		Node: mutatetest.New(t, func(p *host.Paths) { p.CRISocket, p.ContainerdRoot = c.Socket, filepath.Join(c.Dir, "root") })}
	d.stateDir = d.Mkdir(filepath.Join(d.Dir, "state"))
	d.Host.Paths.KubeletConfig = d.Write(filepath.Join(d.Dir, "kubelet.yaml"), "imageMinimumGCAge: 2m\n")
	d.Host.Clock = func() finding.Timestamp {
		now := host.Now()
		now.SinceBoot, now.Wall = now.SinceBoot+d.ahead, now.Wall.Add(d.ahead)
		return now
	}
	runtime, closer, err := cri.NewRuntime(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer.Close() })
	containerd, closer2, err := cri.NewContainerd(c.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = closer2.Close() })
	d.Host.Runtime, d.Host.Containerd = runtime, containerd
	// A pod bound to this node that has not started.
	d.Host.Kubelet.Pods = hosttest.Answer([]corev1.Pod{{Spec: corev1.PodSpec{
		Containers: []corev1.Container{{Image: "registry.k8s.io/next:1"}}}}}, nil)
	d.Host.Kubelet.Scrape = hosttest.Answer(&kubelet.Scrape{At: host.Now(), Metrics: kubelet.Metrics{
		"kubelet_evictions": {}}}, nil)
	ask := d.Host.Prober.Do
	d.Host.Prober.Do = func(ctx context.Context, r probe.ProbeRequest) (probe.ProbeAnswer, error) {
		if d.leaking {
			d.fill(5)
		}
		return ask(ctx, r)
	}
	d.runPod()
	d.run()
	return d
}

// runPod runs the living pod, with files like removable ones: a core dump in its volume, a journal in its logs.
func (d *realDisk) runPod() {
	uid := mutatetest.UID(d.t)
	d.Cgroups(uid, "")
	parent := d.Host.Paths.CgroupRoot + "/kubepods/besteffort/pod" + uid
	container := d.containerd.Container(d.containerd.Sandbox(uid, parent, false), parent)
	logs := filepath.Join(d.Dir, "log/pods/default_app_"+uid)
	d.living = []string{d.PodDir(uid), logs, filepath.Join(d.containerd.Bundle(container.Id), "rootfs")}
	for _, dir := range d.living {
		d.Write(filepath.Join(dir, "core.app.0.1.1.1"), d.random(1))
		d.Write(filepath.Join(dir, "system@1-1.journal"), d.random(1))
		d.Write(filepath.Join(dir, "var/0.log"), d.random(1))
	}
}

// run starts the runner, which knows only the state on disk.
func (d *realDisk) run() {
	d.t.Helper()
	settings := Defaults()
	settings.Actions["free-disk-space"] = release.On
	settings.VerifyWithin, settings.Hold = 0, time.Second
	settings.PerHour, settings.PerDay = 100, 100
	settings.DiskSpace.Images, settings.DiskSpace.Journal = true, true
	settings.DiskSpace.CoreDumps, settings.DiskSpace.Quarantine = true, true
	settings.DiskSpace.JournalFloorBytes = 1
	releases := release.Defaults()
	releases.Mode, releases.Quarantine.Keep = release.On, 2*day
	releases.KillSwitch, releases.Lock = filepath.Join(d.stateDir, "stop"), filepath.Join(d.stateDir, "release.lock")
	var err error
	d.runner, err = New(Options{Settings: settings, Releases: releases, Host: d.Host, Mutator: d.Mutator,
		Log: slog.New(slog.DiscardHandler), StateDir: d.stateDir,
		Observe: func(ctx context.Context, check string) (finding.Observation, error) {
			found, err := d.check.Run(ctx, d.Host)
			return finding.Observation{Check: check, At: d.Host.Clock(), Findings: found, Err: err}, nil
		}})
	if err != nil {
		d.t.Fatal(err)
	}
	d.journals = filepath.Join(d.Dir, "journal")
	d.runner.tools.folders = systemFolders{coreDumps: filepath.Join(d.Dir, "coredump"), journals: d.journals}
}

// random returns bytes that neither a filesystem nor an archive can compress.
func (d *realDisk) random(mebibytes int) string {
	data := make([]byte, mebibytes*mib)
	_, _ = rand.Read(data)
	return string(data)
}

// free is the free space by statfs(2), in percent.
func (d *realDisk) free() float64 {
	var stat unix.Statfs_t
	if err := unix.Statfs(d.Dir, &stat); err != nil {
		d.t.Fatal(err)
	}
	return float64(stat.Bavail) / float64(stat.Blocks) * 100
}

// fill grows a file on the disk until less than this percentage is free.
func (d *realDisk) fill(percent float64) {
	d.t.Helper()
	f, err := os.OpenFile(filepath.Join(d.Dir, "somebody's"), os.O_CREATE|os.O_WRONLY, 0o600)
	if err == nil {
		err = unix.Syncfs(int(f.Fd())) // count the files removed just now as free
	}
	if err != nil {
		d.t.Fatal(err)
	}
	defer f.Close()
	for d.free() > percent {
		stat, err := f.Stat()
		if err == nil {
			err = unix.Fallocate(int(f.Fd()), 0, stat.Size(), mib)
		}
		if err != nil {
			d.t.Fatal(err)
		}
	}
}

func (d *realDisk) dump(name string) {
	d.Write(filepath.Join(d.Dir, "coredump", name), d.random(4))
}

// litter makes removable files: 8 MiB in quarantine, 8 MiB of core dumps, a journal, and images of 24 MiB each.
func (d *realDisk) litter(machine string) {
	d.t.Helper()
	d.dump("core.old")
	d.dump("core.older")
	d.dump("core.young")
	young := time.Now().Add(d.ahead + 20*day)
	if err := os.Chtimes(filepath.Join(d.Dir, "coredump/core.young"), young, young); err != nil {
		d.t.Fatal(err)
	}
	mutatetest.Journal(d.t, filepath.Join(d.Mkdir(d.journals), machine))
	for _, name := range []string{"next", "first", "second", "third", "fourth"} {
		d.containerd.Import("registry.k8s.io/"+name+":1", []byte(d.random(12)))
	}
	gone := mutatetest.UID(d.t)
	data := d.Write(d.PodDir(gone, "volumes/kubernetes.io~empty-dir/db"), d.random(8))
	if err := d.Mutator.Quarantine(d.t.Context(), gone, "volumes/kubernetes.io~empty-dir/db", mutatetest.FileID(d.t, data),
		1<<30); err != nil {
		d.t.Fatal(err)
	}
	if err := os.RemoveAll(d.PodDir(gone)); err != nil {
		d.t.Fatal(err)
	}
	observeFor(d.runner, 10*day)
	o := release.Options{Settings: d.runner.options.Releases, Host: d.Host, Mutator: d.Mutator,
		Log: slog.New(slog.DiscardHandler), StateDir: d.stateDir}
	d.ahead += 36 * time.Hour
	if expired, err := release.ExpiredQuarantine(d.t.Context(), o); err != nil || len(expired) > 0 {
		d.t.Fatal(expired, err)
	}
	if err := release.SweepQuarantine(d.t.Context(), o); err != nil { // it is reported
		d.t.Fatal(err)
	}
	d.ahead += 24 * time.Hour
}

// faults are the check's current findings.
func (d *realDisk) faults() map[string]finding.Finding {
	d.t.Helper()
	found, err := d.check.Run(d.t.Context(), d.Host)
	if err != nil {
		d.t.Fatal(err)
	}
	all := map[string]finding.Finding{}
	for _, f := range found {
		f.Check = d.check.ID
		all[f.Subject.Name+" "+f.Reason] = f
	}
	return all
}

// believe makes the runner believe the check's findings, and runs a round every half minute of the node's clock until
// the runner has no more steps; it returns the last round's reason.
func (d *realDisk) believe(id string) (blocked string) {
	d.t.Helper()
	subjects := map[string]*finding.Believed{}
	f := d.faults()["imagefs.available EvictionThresholdMet"]
	subjects["s"] = &finding.Believed{Finding: f, ID: id, Raised: d.Host.Clock()}
	d.runner.Update(finding.State{d.check.ID: {Subjects: subjects}}, nil)
	before := len(d.history())
	for range 8 {
		d.runner.round(d.t.Context())
		if steps := d.runner.Status().Steps; len(steps) > 0 {
			blocked = steps[0].Blocked
		}
		if len(d.history()) > before {
			break
		}
		d.ahead += 30 * time.Second
	}
	return blocked
}

func (d *realDisk) history() []string {
	d.t.Helper()
	records, _, err := ReadJournal(d.stateDir)
	if err != nil {
		d.t.Fatal(err)
	}
	return History(records)
}

// images are the names of the runtime's images.
func (d *realDisk) images() (names []string) {
	d.t.Helper()
	all, err := d.Host.Runtime.Images(d.t.Context())
	if err != nil {
		d.t.Fatal(err)
	}
	for _, i := range all {
		names = append(names, strings.Join(i.GetRepoTags(), " "))
	}
	slices.Sort(names)
	return names
}

func (d *realDisk) dumps() (names []string) {
	entries, err := os.ReadDir(filepath.Join(d.Dir, "coredump"))
	if err != nil {
		d.t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

// canaries are all files of the living pod, byte by byte.
func (d *realDisk) canaries() map[string]string {
	all := map[string]string{}
	for _, dir := range d.living {
		maps.Copy(all, mutatetest.Snapshot(d.t, dir))
	}
	return all
}

// A real filesystem with a real containerd, journal, core dumps and quarantine is filled until it crosses kubelet's
// thresholds. The agent frees space up to its target, from every source, and the same check stops finding the fault. If
// a writer is as fast as the clean-up, three tries fail, repairs stop, and this is a finding. No file of the living pod
// changes; neither its image nor the image of a pod that has not started is removed.
func TestFreeDiskSpaceOnAFullDisk(t *testing.T) {
	t.Cleanup(ownedtest.Temp()) // kubelet's configuration must be root's alone
	loop := hosttest.NewLoopFS(t, "ext4")
	point, err := os.MkdirTemp("", "disk") // short, for the names of sockets
	if err != nil {
		t.Fatal(err)
	}
	loop.Mount(point, "noatime")
	t.Run("disk", func(t *testing.T) {
		t.Setenv("TMPDIR", point)
		d := newRealDisk(t)
		machine, err := d.Host.Files.Text("/etc/machine-id")
		if err != nil {
			t.Fatal(err)
		}
		d.litter(machine)
		before := d.canaries()
		if found := d.faults(); len(found) > 0 {
			t.Fatalf("before it is full: %v", found)
		}
		t.Run("helps", func(t *testing.T) { d.helps(t) })
		t.Run("does not help", func(t *testing.T) { d.doesNotHelp(t) })
		if diff := cmp.Diff(keys(before), keys(d.canaries())); diff != "" {
			t.Errorf("files of the living pod: %s", diff)
		}
		for name, text := range d.canaries() {
			if text != before[name] {
				t.Errorf("%s of the living pod has changed", name)
			}
		}
	})
}

func keys(all map[string]string) []string { return slices.Sorted(maps.Keys(all)) }

func (d *realDisk) helps(t *testing.T) {
	d.fill(8)
	if got, want := slices.Sorted(maps.Keys(d.faults())), []string{"imagefs.available EvictionThresholdMet",
		"nodefs.available EvictionThresholdMet"}; !slices.Equal(got, want) {
		t.Fatalf("%.1f %% free: %q, want %q", d.free(), got, want)
	}
	found := time.Now()
	blocked := d.believe("first")
	t.Logf("repaired by free-disk-space in %s", (time.Since(found) - time.Second).Round(100*time.Millisecond))
	history := d.history()
	if len(history) != 1 || !strings.Contains(history[0], ": verified: freed") || len(d.faults()) > 0 || d.free() < 25 {
		t.Fatalf("%.1f %% free; %q, %s; %v", d.free(), history, blocked, d.faults())
	}
	t.Log(history[0])
	for _, source := range []string{"quarantine 1 (8.0 MiB)", "core dumps 2 (8.0 MiB)", "journal 3 (", "images "} {
		if !strings.Contains(history[0], source) {
			t.Errorf("%q, want %q", history[0], source)
		}
	}
	if want := []string{"core.young"}; !slices.Equal(d.dumps(), want) {
		t.Errorf("core dumps: %q, want %q", d.dumps(), want)
	}
	left := d.images()
	for _, name := range []string{mutatetest.Image, "registry.k8s.io/next:1", "registry.k8s.io/fourth:1"} {
		if !slices.Contains(left, name) {
			t.Errorf("image %s is gone: it is used, or enough was free before", name)
		}
	}
	if slices.Contains(left, "registry.k8s.io/first:1") {
		t.Errorf("images: %q", left)
	}
	entries, err := os.ReadDir(d.Mutator.QuarantineDir())
	if err != nil || len(entries) > 0 {
		t.Errorf("quarantine: %v, %v", entries, err)
	}
}

func (d *realDisk) doesNotHelp(t *testing.T) {
	d.fill(5)
	d.leaking = true
	for run := 1; run <= 3; run++ {
		d.dump(fmt.Sprint("core.", run)) // the leaking program has crashed
		observeFor(d.runner, 10*day)
		blocked := d.believe("again")
		history := d.history()
		if len(history) != 1+run || !strings.Contains(history[run], "failed: the fault is still there") ||
			!strings.Contains(history[run], "below the target") {
			t.Fatalf("%q, %s", history, blocked)
		}
		d.ahead += 3 * time.Hour
	}
	if left := d.images(); !slices.Equal(left, []string{"registry.k8s.io/next:1", mutatetest.Image}) {
		t.Errorf("images: %q", left)
	}
	d.dump("core.4")
	observeFor(d.runner, 10*day)
	if blocked := d.believe("again"); !strings.Contains(blocked, "3 repairs have failed within a day") {
		t.Errorf("%q", blocked)
	}
	if want := []string{"core.4", "core.young"}; !slices.Equal(d.dumps(), want) || len(d.history()) != 4 {
		t.Errorf("%q, want %q; %q", d.dumps(), want, d.history())
	}
	if found := d.runner.Findings(); !slices.ContainsFunc(found, func(f finding.Finding) bool {
		return f.Reason == reasonStopped
	}) {
		t.Errorf("%+v", found)
	}
}
