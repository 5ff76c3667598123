package npd

import (
	"context"
	"log/slog"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	hostkmsg "github.com/nodeagent/nodeagent/internal/host/kmsg"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// madeUp is a host of which only the clock is used.
func madeUp() *host.Host {
	began := time.Now()
	return &host.Host{NodeName: "node", Paths: host.Paths{InitPID: os.Getpid()}, Clock: func() finding.Timestamp {
		now := time.Now()
		return finding.Timestamp{Wall: now.Round(0), Boot: "boot", SinceBoot: time.Hour + now.Sub(began)}
	}}
}

// memoryStore keeps the state in a map.
type memoryStore struct {
	mu    sync.Mutex
	kept  map[string]string
	saves int
}

func (m *memoryStore) Load(key string) ([]byte, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	v, ok := m.kept[key]
	return []byte(v), ok
}

func (m *memoryStore) Save(key string, value []byte) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.kept == nil {
		m.kept = map[string]string{}
	}
	m.kept[key] = string(value)
	m.saves++
}

// kmsg is the kernel's log of a bubble.
type kmsg struct {
	mu      sync.Mutex
	records []hostkmsg.KernelRecord
	each    func(hostkmsg.KernelRecord)
	up      func() time.Duration
}

// says adds a record of the kernel.
func (k *kmsg) says(text string) { k.record(hostkmsg.KernelRecord{Text: text}) }

func (k *kmsg) record(r hostkmsg.KernelRecord) {
	k.mu.Lock()
	defer k.mu.Unlock()
	r.Sequence, r.Up = uint64(len(k.records)+100), k.up()
	k.records = append(k.records, r)
	if k.each != nil {
		k.each(r)
	}
}

// watch replaces host.WatchKernelLog.
func (k *kmsg) watch(ctx context.Context, _ *slog.Logger, each func(hostkmsg.KernelRecord), caughtUp func()) error {
	k.mu.Lock()
	for _, r := range k.records {
		each(r)
	}
	caughtUp()
	k.each = each
	k.mu.Unlock()
	<-ctx.Done()
	k.mu.Lock()
	defer k.mu.Unlock()
	k.each = nil
	return nil
}

// world runs monitors like the agent: with engine, tracker, and the reports.
type world struct {
	*Monitors
	tracker  *finding.Tracker
	mu       sync.Mutex
	reported []string
	stop     func()
}

// run starts the monitors. state is the believed state of an earlier run.
func run(t *testing.T, files []File, s Settings, d Deps, k *kmsg, state finding.State) *world {
	t.Helper()
	w := &world{Monitors: New(files, nil, s, d), tracker: finding.NewTracker(nil, state)}
	sources := w.Sources()
	if k != nil {
		watch := w.Kernel(k.watch)
		sources = append(sources, detect.Source{Name: detect.WakeKernelLog,
			Run: func(ctx context.Context, _ func(detect.Change)) error {
				return watch(ctx, slog.New(slog.DiscardHandler), func(hostkmsg.KernelRecord) {}, func() {})
			}})
	}
	engine := detect.NewEngine(d.Host, slog.New(slog.DiscardHandler), w.Checks(), sources, detect.Observer{}, w.observe)
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = engine.Run(ctx)
	}()
	w.stop = func() { cancel(); <-ended }
	synctest.Wait()
	return w
}

func (w *world) observe(l finding.Observation) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, u := range w.tracker.Observe(l) {
		if u.Kind != finding.StatusChanged && !(u.Kind == finding.Cleared && u.Finding.OneShot) {
			w.reported = append(w.reported, string(u.Kind)+" "+u.Finding.Reason+" "+u.Finding.Message)
		}
	}
}

// expect waits a little and compares the reports since the last call.
func (w *world) expect(t *testing.T, want ...string) {
	t.Helper()
	time.Sleep(2 * time.Second)
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	slices.Sort(w.reported) // simultaneous reports have no order
	slices.Sort(want)
	if got := strings.Join(w.reported, "\n"); got != strings.Join(want, "\n") {
		t.Errorf("reported:\n%s\nwant:\n%s", got, strings.Join(want, "\n"))
	}
	w.reported = nil
}

func (w *world) status(check string) finding.Status {
	w.mu.Lock()
	defer w.mu.Unlock()
	if c := w.tracker.State()[check]; c != nil {
		return c.Status
	}
	return ""
}
