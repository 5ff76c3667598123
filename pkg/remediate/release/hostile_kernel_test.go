package release

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/mount"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

var hostilePods = flag.Uint64("hostile.pods", 200, "how many hostile pods are made on the real kernel")

// Random pods on the real kernel: mounts with every propagation and later host mounts below them, cgroups named like
// the host's, notes that are pipes, processes that resist signals; the pods are alive, dead, or come back midway, with
// witnesses that fail or are blind. Only the dead pod's own objects are ever touched, and never its data.
func TestHostilePods(t *testing.T) {
	t.Parallel()
	const parts = 4
	part, inside := mutatetest.Parts(t, parts)
	if !inside {
		return
	}
	w := newWorld(t, func(p *host.Paths) {
		if _, err := os.Stat("/sys/fs/cgroup/freezer"); err == nil {
			p.CgroupMount = "/sys/fs/cgroup/freezer" // one hierarchy of a dozen will do
		}
	})
	w.settings.PodsPerHour, w.settings.RetryAfter = 1<<20, 0
	w.settings.OwnerGrace, w.settings.ProcessGrace = time.Millisecond, 20*time.Millisecond
	pods, released := 0, 0
	var gone []string
	for seed := uint64(part) + 1; seed <= *hostilePods; seed += parts {
		pods++
		p := newHostilePod(w, seed)
		p.gone = &gone
		before := p.census()
		outcome := p.release()
		after := p.census()
		for _, harm := range before.Missing(after, w.Dir) {
			if p.mayGo(harm) {
				continue
			}
			t.Errorf("-hostile.pods, seed %d (%s): harmed: %s\n%s", p.seed, p.story, harm, describe(outcome))
			break
		}
		for _, pod := range outcome.Pods {
			if pod.Group != p.uid || pod.Result != Released {
				continue
			}
			released++
			for name := range after {
				if strings.Contains(name, p.uid) && !strings.Contains(name, "nodeagent-quarantine/") {
					t.Errorf("seed %d (%s): is said to be released, and there is %s", p.seed, p.story, name)
				}
			}
		}
		p.remove()
		gone = append(gone, p.uid)
	}
	t.Logf("%d pods, %d released whole", pods, released)
	if released < pods/20 {
		t.Errorf("only %d of %d pods were released: this proves little", released, pods)
	}
}

// hostilePod is one pod with its random story.
type hostilePod struct {
	*world
	seed  uint64
	rng   *rand.Rand
	uid   string
	story string    // how it lives and dies
	gone  *[]string // earlier pods, which are all dead now
	alive bool      // a witness knows it, at the latest since the release began
	hosts string    // host directory that it bind-mounts
	disks []string
}

func newHostilePod(w *world, seed uint64) *hostilePod {
	p := &hostilePod{world: w, seed: seed, rng: rand.New(rand.NewPCG(seed, 2)), uid: mutatetest.UID(w.t)}
	p.hosts = w.Mkdir(filepath.Join(w.Dir, "bystanders", fmt.Sprintf("host-%d", seed)))
	w.Write(w.PodDir(p.uid, "etc-hosts"), "127.0.0.1 localhost\n")
	p.cgroups()
	for i := range p.rng.IntN(4) {
		p.volume(i)
	}
	for i := range p.rng.IntN(3) {
		p.bind(i)
	}
	p.note()
	if p.rng.IntN(4) == 0 {
		w.Write(w.PodDir(p.uid, "volumes/kubernetes.io~empty-dir/cache/data"), "user data")
	}
	return p
}

// cgroups gives it cgroups with the host's names, and processes in them.
func (p *hostilePod) cgroups() {
	names := []string{"", "system.slice", "kubepods.slice/init.scope", "kubepods/besteffort/pod" + mutatetest.UID(p.t),
		`a\x2db.scope`, "user.slice"}
	for range p.rng.IntN(4) {
		dirs := p.Cgroups(p.uid, filepath.Join(mutatetest.Hex(p.t, 64), names[p.rng.IntN(len(names))]))
		if p.rng.IntN(2) == 0 {
			p.Shell(p.uid, dirs, "trap '' TERM; echo ready; exec sleep 600")
		}
	}
}

// volume is a volume in memory, sometimes stacked on another one.
func (p *hostilePod) volume(i int) {
	point := p.PodDir(p.uid, fmt.Sprintf("volumes/kubernetes.io~secret/v%d", p.rng.IntN(i+1)))
	p.Mount("tmpfs", point, "tmpfs", 0)
	p.propagate(point)
}

// bind binds a directory of the host, or all of kubelet's, with any propagation; the host later mounts a disk below it.
func (p *hostilePod) bind(i int) {
	source := filepath.Join(p.hosts, fmt.Sprint(i))
	p.Write(filepath.Join(source, "canary"), "alive")
	if p.rng.IntN(5) == 0 {
		source = p.Host.Paths.KubeletRoot
	}
	point := p.PodDir(p.uid, fmt.Sprintf("volume-subpaths/v%d/app/0", i))
	recursive := uintptr(0)
	if source != p.Host.Paths.KubeletRoot && p.rng.IntN(2) == 0 {
		recursive = unix.MS_REC
	}
	p.Mount(source, point, "", unix.MS_BIND|recursive)
	p.propagate(point)
	if source != p.Host.Paths.KubeletRoot && p.rng.IntN(3) > 0 {
		disk := filepath.Join(source, "disk")
		p.Mount("tmpfs", disk, "tmpfs", 0)
		p.disks = append(p.disks, disk)
		p.Write(filepath.Join(disk, "canary"), "the host's disk")
	}
}

func (p *hostilePod) propagate(point string) {
	kinds := []uintptr{unix.MS_SHARED, unix.MS_SHARED, unix.MS_SLAVE, unix.MS_PRIVATE, unix.MS_UNBINDABLE}
	if err := unix.Mount("", point, "", kinds[p.rng.IntN(len(kinds))], ""); err != nil {
		p.t.Fatal(err)
	}
}

// note makes another file in the place of kubelet's vol_data.json of a CSI volume.
func (p *hostilePod) note() {
	name := p.PodDir(p.uid, "volumes/kubernetes.io~csi/pvc/vol_data.json")
	var err error
	switch p.rng.IntN(5) {
	case 0:
		p.Write(name, `{"driverName":"gone.example.com","volumeHandle":"h","specVolID":"pvc"}`)
	case 1:
		p.Mkdir(filepath.Dir(name))
		err = unix.Mkfifo(name, 0o600)
	case 2:
		p.Mkdir(filepath.Dir(name))
		err = os.Symlink("/etc/passwd", name)
	}
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *hostilePod) census() mutatetest.Census { return p.Census() }

// release runs one release during which something happens.
func (p *hostilePod) release() Outcome {
	p.t.Helper()
	at, confirms := 1+p.rng.IntN(4), 0
	fail := false
	switch p.rng.IntN(5) {
	case 0:
		p.story, p.alive, p.known[p.uid] = "alive", true, true
		p.blind[[]string{kubelet, list}[p.rng.IntN(2)]][p.uid] = p.rng.IntN(2) == 0
	case 1:
		p.story = fmt.Sprintf("comes back at check %d", at)
	case 2:
		p.story, fail = fmt.Sprintf("a witness fails at check %d", at), true
	default:
		p.story = "dead"
	}
	p.onConfirm = func(int) {
		if confirms++; confirms == at && strings.HasPrefix(p.story, "comes") {
			p.known[p.uid] = true
		}
	}
	runner := p.runner()
	if confirm := runner.options.Confirm; fail {
		runner.options.Confirm = func(ctx context.Context, uid string) (object.Report, error) {
			report, err := confirm(ctx, uid)
			if confirms == at {
				return object.Report{}, errors.New("simulated: no answer")
			}
			return report, err
		}
	}
	outcome, err := runner.Release(p.t.Context(), p.inspect())
	if err != nil {
		p.t.Errorf("seed %d: %v", p.seed, err)
	}
	p.onConfirm = nil
	return outcome
}

// mayGo reports whether a lost object was the dead pod's own, or a view of foreign files through its directory. The
// pod's data, and any object of a living pod, must never go.
func (p *hostilePod) mayGo(harm string) bool {
	if strings.Contains(harm, "empty-dir") && !strings.Contains(harm, "volume-subpaths") {
		return false
	}
	own := func(uid string) bool { return strings.Contains(harm, uid) }
	return !p.alive && own(p.uid) || slices.ContainsFunc(*p.gone, own) ||
		strings.Contains(harm, "nodeagent-quarantine/.")
}

// remove takes away the rest that was not released on purpose.
func (p *hostilePod) remove() {
	p.t.Helper()
	delete(p.known, p.uid)
	for _, blind := range p.blind {
		delete(blind, p.uid)
	}
	for _, disk := range p.disks {
		_ = unix.Unmount(disk, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	dir := p.PodDir(p.uid)
	for range 64 {
		mounts, err := mount.TableOf(p.Host, os.Getpid())
		if err != nil {
			p.t.Fatal(err)
		}
		mine := slices.DeleteFunc(mounts, func(m mount.Mount) bool { return !mount.Below(m.Point, dir) })
		if len(mine) == 0 {
			break
		}
		last := mine[len(mine)-1].Point
		_ = unix.Mount("", last, "", unix.MS_PRIVATE, "")
		_ = unix.Unmount(last, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW)
	}
	for _, text := range p.Table(os.Getpid()) {
		if strings.Contains(text, p.uid) {
			p.t.Fatalf("%s is still mounted", text)
		}
	}
	if err := os.RemoveAll(dir); err != nil {
		p.t.Fatal(err)
	}
}
