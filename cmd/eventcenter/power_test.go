package main

import (
	"crypto/tls"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/test/guest"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

var withGuest = flag.Bool("guest", false, "kill whole emulated machines on which the center runs; with -long more often")

// powered is an emulated machine with one center, or with three replicas.
type powered struct {
	t       *testing.T
	machine guest.Server
	booted  *guest.Booted
	centers []*process
	log     *syncedLog
}

// change is a change to one file of the program, for a test.
type change struct {
	file    string
	changes []string // from, to, from, to
}

// newPowered creates the machine's disk and files. The centers listen on ports from 10685 on, their replicas' routes
// from 10785 on.
func newPowered(t *testing.T, centers int, without change) *powered {
	t.Helper()
	dir, err := os.MkdirTemp("", "power-") // short enough for a socket
	must(t, err)
	p := &powered{t: t, log: &syncedLog{}}
	t.Cleanup(func() {
		p.lose()
		if p.machine.Disk != nil {
			_ = p.machine.Disk.Close()
		}
		_ = os.RemoveAll(dir)
	})
	repo, err := filepath.Abs("../..")
	must(t, err)
	writeCertificate(t, dir, 1)
	files := map[string]string{"/bin/eventcenter": buildWith(t, dir, without), "/tls/cert": filepath.Join(dir, "cert"),
		"/tls/key": filepath.Join(dir, "key")}
	files["/token"] = put(t, dir, "token", strings.Repeat("power", 8)+"\n")
	files["/secret"] = put(t, dir, "secret", "what the replicas show\n")
	ports, command := map[string]int{}, "umask 077\nchmod 600 /tls/key /secret\n"
	routes := []string{"127.0.0.1:10785", "127.0.0.1:10786", "127.0.0.1:10787"}
	for i := range centers {
		flags := ""
		if centers > 1 {
			name := fmt.Sprintf("replica-%d.yaml", i)
			files["/"+name] = put(t, dir, name, replicasFile(i, "/secret", "", routes))
			flags = fmt.Sprintf("--replicas /replica-%d.yaml", i)
		}
		command += fmt.Sprintf("mkdir -p /data/%d && cp /token /data/%[1]d/token && chmod 600 /data/%[1]d/token\n"+
			"eventcenter serve --dir /data/%[1]d --listen 10.0.2.15:%d --tls-cert /tls/cert --tls-key /tls/key %s &\n", i,
			10685+i, flags)
		address := loopback.Free(t)
		ports[address] = 10685 + i
		insecure := &tls.Config{InsecureSkipVerify: true} //nolint:gosec // on loopback, to a machine of the test
		p.centers = append(p.centers, &process{t: t, dir: dir, url: "https://" + address,
			client: &http.Client{Timeout: time.Minute, Transport: &http.Transport{TLSClientConfig: insecure}}})
	}
	p.machine = guest.Server{Guest: guest.Guest{Cache: filepath.Join(repo, ".cache"), Dir: dir, Output: p.log},
		Disk: newDisk(t, filepath.Join(dir, "disk.img")), Files: files, Command: command, Ports: ports}
	return p
}

// newDisk creates a file with a file system.
func newDisk(t *testing.T, name string) *guest.Disk {
	t.Helper()
	must(t, errors.Join(os.WriteFile(name, nil, 0o600), os.Truncate(name, 1<<30)))
	run(t, "", nil, need.Program(t, "mkfs.ext4"), "-q", "-F", name)
	disk, err := guest.NewDisk(name)
	must(t, err)
	return disk
}

// buildWith builds the program with a change, if any.
func buildWith(t *testing.T, dir string, c change) string {
	t.Helper()
	args := []string{"build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "eventcenter")}
	if c.file != "" {
		file, err := filepath.Abs(filepath.Join("../..", c.file))
		must(t, err)
		text := read(t, file)
		for i := 0; i < len(c.changes); i += 2 {
			if strings.Count(string(text), c.changes[i]) != 1 {
				t.Fatalf("%s does not have %q once", c.file, c.changes[i])
			}
			text = []byte(strings.Replace(string(text), c.changes[i], c.changes[i+1], 1))
		}
		overlay := fmt.Sprintf(`{"Replace": {%q: %q}}`, file, put(t, dir, "changed.go", string(text)))
		args = append(args, "-overlay", put(t, dir, "overlay.json", overlay))
	}
	run(t, "", []string{"CGO_ENABLED=0"}, "go", append(args, ".")...)
	return filepath.Join(dir, "eventcenter")
}

// boot starts the machine and waits until all its centers accept events.
func (p *powered) boot(within time.Duration) error {
	booted, err := p.machine.Boot(p.t.Context())
	if err != nil {
		return err
	}
	p.booted = booted
	for i, c := range p.centers {
		if !eventually(within, func() bool { err = c.has("/readyz", http.StatusOK); return err == nil }) {
			return fmt.Errorf("center %d is not ready: %w", i, err)
		}
	}
	return nil
}

// lose cuts the machine's power. It returns how many written sectors had not reached its disk.
func (p *powered) lose() (sectors int) {
	if p.booted != nil {
		var err error
		if sectors, err = p.booted.Kill(); err != nil {
			p.t.Error(err)
		}
		p.booted = nil
	}
	return sectors
}

// round sends events to a center until this many more are acknowledged and a random time has passed, and cuts the power
// while it sends.
func (p *powered) round(l *load, to *process, more int) (sectors int) {
	p.t.Helper()
	end := l.begin(to)
	defer end()
	l.wait(p.t, more)
	time.Sleep(rand.N(2 * time.Second))
	return p.lose()
}

// lost returns acknowledged events missing on any center, and reports duplicates.
func (p *powered) lost(l *load) (lost []string) {
	p.t.Helper()
	await(p.t, func() error {
		bounds := map[uint64]bool{}
		for _, c := range p.centers {
			newest, err := c.newest()
			if err != nil {
				return err
			}
			bounds[newest] = true
		}
		return unless(len(bounds) == 1, "the replicas are at %v\n%s", bounds, p.log)
	})
	for i, c := range p.centers {
		stored := readAll(p.t, c)
		for id := range l.acked {
			switch n := stored[id]; {
			case n == 0:
				lost = append(lost, fmt.Sprintf("center %d: %s", i, id))
			case n > 1:
				p.t.Errorf("center %d: %s is there %d times", i, id, n)
			}
		}
	}
	return lost
}

// After a power loss under load, of a machine with one center or with all replicas, every acknowledged event is there
// exactly once. The program's precautions are necessary: without them events are lost.
func TestPowerLoss(t *testing.T) {
	need.Flag(t, *withGuest, "-guest: boots a machine of its own")
	for _, kind := range []struct {
		name    string
		centers int
		without change
	}{
		{"SQLite", 1, change{"pkg/eventcenter/journal/sqlite/partition.go",
			[]string{"synchronous(FULL)", "synchronous(NORMAL)"}}},
		{"JetStream", 3, change{"pkg/eventcenter/cluster/server.go",
			[]string{"SyncAlways: true", "SyncAlways: false"}}},
	} {
		t.Run(kind.name, func(t *testing.T) { keepsAll(t, newPowered(t, kind.centers, change{})) })
		t.Run(kind.name+"/"+kind.without.changes[1], func(t *testing.T) {
			losesSome(t, newPowered(t, kind.centers, kind.without))
		})
	}
}

func keepsAll(t *testing.T, p *powered) {
	rounds, l := 3, newLoad(8)
	if *long {
		rounds = 20
	}
	for round := range rounds + 1 {
		if err := p.boot(patience); err != nil {
			t.Fatalf("round %d: %v\n%s", round, err, p.log)
		}
		if lost := p.lost(l); len(lost) > 0 {
			t.Fatalf("round %d: lost %d, as %s\n%s", round, len(lost), lost[0], p.log)
		}
		if round == rounds {
			return
		}
		sectors := p.round(l, p.centers[round%len(p.centers)], 200)
		t.Logf("round %d: %d acknowledged, %d sectors lost", round, len(l.acked), sectors)
	}
}

// losesSome demands that events are lost, or that the replicas cannot even start.
func losesSome(t *testing.T, p *powered) {
	l := newLoad(8)
	for round := range 3 {
		within := patience
		if round > 0 {
			within = 3 * time.Minute
		}
		if err := p.boot(within); err != nil {
			if round == 0 {
				t.Fatalf("%v\n%s", err, p.log)
			}
			t.Logf("round %d: %v", round, err)
			return
		}
		if lost := p.lost(l); len(lost) > 0 {
			t.Logf("round %d: %d acknowledged; that are not there, on all centers together: %d, as it must be", round,
				len(l.acked), len(lost))
			return
		}
		p.round(l, p.centers[round%len(p.centers)], 200)
	}
	t.Error("nothing is lost: this test does not see what it is for")
}
