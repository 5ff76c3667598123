package remediate

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
	storagev1 "k8s.io/api/storage/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/hosterr"
	hostkubelet "github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/socket"
	"github.com/nodeagent/nodeagent/internal/mutate"
	"github.com/nodeagent/nodeagent/internal/mutate/mutatetest"
	"github.com/nodeagent/nodeagent/pkg/finding"
	"github.com/nodeagent/nodeagent/pkg/inspect"
	"github.com/nodeagent/nodeagent/test/fakecsi"
)

// looked makes looks at the given minutes of one boot.
func looked(minutes ...float64) []driverObservation {
	looks := make([]driverObservation, 0, len(minutes))
	for _, m := range minutes {
		at := finding.Timestamp{Boot: "b", SinceBoot: time.Hour + time.Duration(m*float64(time.Minute))}
		looks = append(looks, driverObservation{At: at, CSINode: "u"})
	}
	return looks
}

func TestDriverGoneSince(t *testing.T) {
	with := func(looks []driverObservation, i int, change func(*driverObservation)) []driverObservation {
		change(&looks[i])
		return looks
	}
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		looks []driverObservation
		want  string // empty: proven gone
	}{
		"three times over ten minutes": {looked(0, 5, 10), ""},
		"a look each two minutes":      {looked(0, 2, 4, 6, 8, 10), ""},
		"never":                        {nil, "not observed yet"},
		"once":                         {looked(10), "1 times over 0s"},
		"twice":                        {looked(0, 10), "2 times over 10m0s"},
		"three times, too short":       {looked(0, 5, 9.9), "3 times over 9m"},
		"three times, two at once":     {looked(0, 9.9, 10), "2 times"},
		"a long time without a look":   {looked(0, 5, 50), "1 times"},
		"from the future":              {looked(0, 20, 10), "1 times"},
		"another boot": {with(looked(0, 5, 10), 0, func(l *driverObservation) {
			l.At.Boot = "a"
		}), "2 times"},
		"no boot known": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.At.Boot = ""
		}), "not known"},
		"another CSINode": {with(looked(0, 5, 10), 0, func(l *driverObservation) {
			l.CSINode = "v"
		}), "2 times"},
		"seen first": {with(looked(0, 5, 10), 0, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "2 times"},
		"seen in between": {with(looked(0, 5, 10), 1, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "1 times"},
		"seen now": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "CSINode names it"},
		"seen now, in other letters": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{"A.Example.com"}
		}), "CSINode names it"},
		"answers now": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.Answering = []string{"A.example.com"}
		}), "answers"},
		"a place of its name": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.InUse = []string{"/k/plugins/A.EXAMPLE.com/x"}
		}), "in use"},
		"somebody who does not say who": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.Unknown = []string{"/k/plugins/x.sock"}
		}), "does not report"},
		"somebody unknown in between": {with(looked(0, 5, 10), 1, func(l *driverObservation) {
			l.Unknown = []string{"/k/plugins/x.sock"}
		}), "1 times"},
		"another driver is there always": {with(looked(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{"b.example.com"}
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := goneSince(test.looks, driver)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}

// withNote makes a pod whose volume's note is all that is left of it.
func (w *world) withNote(driver, handle string) (uid, note string) {
	w.t.Helper()
	uid = mutatetest.UID(w.t)
	return uid, w.Write(w.PodDir(uid, "volumes/kubernetes.io~csi/pvc-1/vol_data.json"),
		volumeNoteOf("pvc-1", handle, driver))
}

// stays releases, and makes sure that a note is still there and why.
func (w *world) stays(note, why string) {
	w.t.Helper()
	text := describe(w.release())
	if _, err := os.Lstat(note); err != nil || !strings.Contains(text, why) {
		w.t.Errorf("%v; want %q in: %s", err, why, text)
	}
}

// needed returns why the note of a pod's volume has to stay.
func (w *world) needed(uid, note string) string {
	w.t.Helper()
	entry := mutate.Entry{Path: csiVolumes + "pvc-1/" + noteName, File: mutatetest.FileID(w.t, note)}
	return volumeNeeded(w.t.Context(), w.runner().tools, uid, entry)
}

// goes releases, and makes sure that a note is in quarantine.
func (w *world) goes(note string) {
	w.t.Helper()
	text := describe(w.release())
	if _, err := os.Lstat(note); !os.IsNotExist(err) {
		w.t.Errorf("the note is still there: %v: %s", err, text)
	}
}

// shortNode is a world whose paths are short enough for the names of sockets.
func shortNode(t *testing.T) *world {
	dir, err := os.MkdirTemp("", "k")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	w := newWorld(t, func(p *host.Paths) {
		p.KubeletRoot, p.PluginRegistry = dir, filepath.Join(dir, "plugins_registry")
	})
	w.Mkdir(filepath.Join(dir, "pods"))
	w.Mkdir(filepath.Join(dir, "plugins_registry"))
	return w
}

// listen listens on a socket without ever saying a word, for which nobody waits for long.
func (w *world) listen(name string) *net.UnixListener {
	w.t.Helper()
	w.Mkdir(filepath.Dir(name))
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: name, Net: "unix"})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { l.Close() })
	w.timeouts.socket = 50 * time.Millisecond
	return l
}

// Wherever a driver may still be, its volume's note stays; and what cannot be told is never taken for its absence.
func TestDriverStillThere(t *testing.T) {
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		arrange func(w *world)
		want    string // empty: the note goes
	}{
		"nowhere": {func(*world) {}, ""},
		"in CSINode": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers(driver), nil }
		}, "CSINode names it"},
		"CSINode is refused": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return nil, hosterr.ErrForbidden }
		}, "not known"},
		"there is no CSINode": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) {
				return nil, apierrors.NewNotFound(schema.GroupResource{Resource: "csinodes"}, "node")
			}
		}, "not known"},
		"an empty answer": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return &storagev1.CSINode{}, nil }
		}, "has no UID"},
		"the apiserver is away": {func(w *world) {
			w.csiNode = func() (*storagev1.CSINode, error) { return nil, context.DeadlineExceeded }
		}, "not known"},
		"no apiserver":      {func(w *world) { w.Host.Cluster.CSINode = nil }, "not known"},
		"no way to sockets": {func(w *world) { w.Host.Plugins = hostkubelet.Plugins{} }, "not known"},
		"its own socket": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
		}, "csi.sock"},
		"its registrar's socket": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.PluginRegistry, driver+"-reg.sock"))
		}, "-reg.sock"},
		"a socket of another name, deep": {func(w *world) {
			w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x/y/.hidden"))
		}, ".hidden"},
		"a socket left behind": {func(w *world) {
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
			l.SetUnlinkOnClose(false)
			l.Close()
		}, ""},
		"a socket whose file was deleted": {func(w *world) {
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins", driver, "csi.sock"))
			if err := os.Remove(l.Addr().String()); err != nil {
				w.t.Fatal(err)
			}
		}, "csi.sock"},
		"a socket of another name whose file was deleted": {func(w *world) {
			w.Host.Paths.KubeletRoot = w.Mkdir(filepath.Join(w.Dir, "k"))
			l := w.listen(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x/y"))
			if err := os.Remove(l.Addr().String()); err != nil {
				w.t.Fatal(err)
			}
		}, "plugins/x/y"},
		"another driver that says so": {func(w *world) {
			startDriver(w, "b.example.com")
			w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers("b.example.com"), nil }
		}, ""},
		"it answers under another path, and is not in CSINode": {func(w *world) {
			startDriver(w, "A.example.com")
		}, "answers"},
		"the directory of plugins is a link": {func(w *world) {
			if err := os.Symlink(w.Mkdir(filepath.Join(w.Dir, "elsewhere")), filepath.Join(w.Host.Paths.KubeletRoot,
				"plugins")); err != nil {
				w.t.Fatal(err)
			}
		}, "not known"},
		"the state cannot be read": {func(w *world) {
			w.Write(filepath.Join(w.Dir, "state", driverFile), "{")
		}, "not known"},
	} {
		t.Run(name, func(t *testing.T) {
			w := shortNode(t)
			test.arrange(w)
			why := w.needed(w.withNote(driver, "v-1"))
			if (why == "") != (test.want == "") || !strings.Contains(why, test.want) {
				t.Errorf("%q, want %q", why, test.want)
			}
		})
	}
}

func startDriver(w *world, name string) {
	w.t.Helper()
	d, err := fakecsi.Start(w.t.Context(), fakecsi.Options{Name: name, KubeletRoot: w.Host.Paths.KubeletRoot})
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = d.Stop() })
}

// One look is no proof, however clear: the driver may be starting anew. Looks are noted while something may be a
// leftover, survive the process, and what cannot be told is none.
func TestDriverLooksAreNoted(t *testing.T) {
	w := shortNode(t)
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	pass := func(d time.Duration) { now.SinceBoot += d; now.Wall = now.Wall.Add(d) }
	if err := os.Remove(filepath.Join(w.Dir, "state", driverFile)); err != nil {
		t.Fatal(err)
	}
	_, note := w.withNote("a.example.com", "v-1")
	for range 3 {
		w.stays(note, "that takes 3 times over 10m0s") // also twice in a minute
		pass(10 * time.Second)
		w.stays(note, "that takes 3 times over 10m0s")
		pass(4 * time.Minute)
	}
	w.csiNode = func() (*storagev1.CSINode, error) { return nil, errors.New("away") }
	w.stays(note, "away")
	pass(2 * time.Minute)
	w.csiNode = nil
	w.goes(note) // three clear looks, the first 14 minutes ago

	// And one that was seen in the middle begins anew.
	_, note = w.withNote("a.example.com", "v-1")
	pass(4 * time.Minute)
	w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers("a.example.com"), nil }
	w.stays(note, "CSINode names it")
	w.csiNode = nil
	pass(4 * time.Minute)
	w.stays(note, "1 times over 0s")
}

// Nothing is looked at, and nothing noted, where no leftover has to do with CSI, or where nothing may be done.
func TestDriverLooksCost(t *testing.T) {
	w := newWorld(t)
	asked := 0
	w.csiNode = func() (*storagev1.CSINode, error) { asked++; return namesDrivers(), nil }
	if err := os.Remove(filepath.Join(w.Dir, "state", driverFile)); err != nil {
		t.Fatal(err)
	}
	w.release()
	w.withNote("a.example.com", "v-1")
	w.settings.Mode = Off
	w.release()
	if asked != 0 {
		t.Errorf("asked %d times", asked)
	}
	w.settings.Mode = DryRun
	w.release()
	w.release()
	if asked != 1 { // the second one came too soon
		t.Errorf("in dry-run: asked %d times", asked)
	}
	if looks, err := w.runner().tools.Drivers.read(); err != nil || len(looks) != 1 {
		t.Errorf("%v, %v", looks, err)
	}
	// A pod that is just ending causes no look: a Watch without tools would fail if it looked.
	young := inspect.Assessment{Object: inspect.Object{Kind: inspect.PodDirectory}, Verdict: inspect.Candidate}
	young.FirstSeen = finding.Timestamp{Boot: "b", SinceBoot: time.Hour}
	at := finding.Timestamp{Boot: "b", SinceBoot: time.Hour + driverMinAge - 1}
	for _, report := range []inspect.Report{{}, {At: at, Objects: []inspect.Assessment{young}}} {
		if err := new(driverWatch).observe(t.Context(), Tools{}, report); err != nil {
			t.Error(err)
		}
	}
}

// What cannot be looked at is logged once, not in each pass.
func TestDriverErrorIsLoggedOnce(t *testing.T) {
	w := newWorld(t)
	w.withNote("a.example.com", "v-1")
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	var log bytes.Buffer
	runner := w.runner()
	runner.options.Log = slog.New(slog.NewTextHandler(&log, nil))
	for _, pass := range []struct {
		err  error
		logs int // so far
	}{{errors.New("away"), 1}, {errors.New("away"), 1}, {errors.New("refused"), 2}, {nil, 2},
		{errors.New("refused"), 3}} {
		w.csiNode = func() (*storagev1.CSINode, error) { return namesDrivers(), pass.err }
		now.SinceBoot += driverSpacing
		if _, err := runner.survey(t.Context(), w.inspect()); err != nil {
			t.Fatal(err)
		}
		if got := strings.Count(log.String(), "CSI drivers could not be observed"); got != pass.logs {
			t.Errorf("%v: %d lines, want %d: %s", pass.err, got, pass.logs, log.String())
		}
	}
}

// What is remembered is bounded.
func TestDriverLooksAreBounded(t *testing.T) {
	w := newWorld(t)
	now := host.Now()
	w.Host.Clock = func() finding.Timestamp { return now }
	w.withNote("a.example.com", "v-1")
	tools := w.runner().tools
	report := w.inspect()
	for range driverHistory + 5 {
		now.SinceBoot += driverSpacing
		if err := tools.Drivers.observe(t.Context(), tools, report); err != nil {
			t.Fatal(err)
		}
	}
	if looks, err := tools.Drivers.read(); err != nil || len(looks) != driverHistory {
		t.Errorf("%d looks, %v", len(looks), err)
	}
}

// What cannot be spoken to, and what is mounted beside a driver's socket, are signs of it.
func TestDriverOddSockets(t *testing.T) {
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		arrange func(w *world)
		want    string
	}{
		"a socket of another type": {func(w *world) {
			dir := w.Mkdir(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x"))
			conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: filepath.Join(dir, "d"), Net: "unixgram"})
			if err != nil {
				w.t.Fatal(err)
			}
			w.t.Cleanup(func() { conn.Close() })
		}, "does not report which driver"},
		"a mount of its own": {func(w *world) {
			w.Mount("tmpfs", filepath.Join(w.Host.Paths.KubeletRoot, "plugins/A.example.com/mounts"), "tmpfs", 0)
		}, "is in use"},
		"more sockets than can be asked": {func(w *world) {
			dir := w.Mkdir(filepath.Join(w.Host.Paths.KubeletRoot, "plugins/x"))
			for i := range maxDriverSockets + 1 {
				if err := unix.Mknod(filepath.Join(dir, itoa(i)), unix.S_IFSOCK|0o600, 0); err != nil {
					w.t.Fatal(err)
				}
			}
		}, "more than 200 sockets"},
	} {
		t.Run(name, func(t *testing.T) {
			w := shortNode(t)
			test.arrange(w)
			if why := w.needed(w.withNote(driver, "v")); !strings.Contains(why, test.want) {
				t.Errorf("%q, want %q", why, test.want)
			}
		})
	}
}

func TestListenerWithoutOwner(t *testing.T) {
	for name, test := range map[string]struct {
		listener        socket.Listener
		unknown, places int
	}{
		"inside":                     {socket.Listener{Path: "/k/plugins/x.sock", Inside: true, PID: 5}, 1, 0},
		"inside, no owner":           {socket.Listener{Path: "/k/plugins/x.sock", Inside: true}, 1, 0},
		"inside, it said who it is":  {socket.Listener{Path: "/k/plugins/known.sock", Inside: true, PID: 5}, 0, 0},
		"like a driver's, no owner":  {socket.Listener{Path: "/csi/csi.sock"}, 1, 0},
		"like a registrar's":         {socket.Listener{Path: "/registration/a-reg.sock"}, 1, 0},
		"like a driver's, elsewhere": {socket.Listener{Path: "/csi/csi.sock", PID: 5}, 0, 1},
		"named after kubelet":        {socket.Listener{Path: "/var/lib/kubelet2/x", PID: 5}, 0, 1},
		"another":                    {socket.Listener{Path: "/run/dbus/system_bus_socket"}, 0, 0},
	} {
		look := driverObservation{}
		s := socketSearch{observation: &look, known: map[string]bool{"/k/plugins/known.sock": true}}
		s.listener(test.listener)
		if len(look.Unknown) != test.unknown || len(look.InUse) != test.places {
			t.Errorf("%s: %+v", name, look)
		}
	}
}
