package notify

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// record contains the messages of a manager.
type record struct {
	mu   sync.Mutex // guards sent
	sent []string
}

func (r *record) list() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.sent)
}

// recorder returns a manager that only records its messages.
func recorder(watchdog time.Duration) (*Manager, *record) {
	r := &record{}
	return &Manager{log: slog.New(slog.DiscardHandler), watchdog: watchdog, send: func(m string) error {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.sent = append(r.sent, m)
		return nil
	}}, r
}

func TestMessagesReachTheManager(t *testing.T) {
	path := filepath.Join(t.TempDir(), "notify")
	conn, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	m := New(slog.New(slog.DiscardHandler))
	m.Ready()
	m.Status("two\nlines\tREADY=1")
	m.Reloading()
	m.Stopping()
	var got []string
	for range 4 {
		buffer := make([]byte, 1000)
		n, err := conn.Read(buffer)
		if err != nil {
			t.Fatal(err)
		}
		text, _, _ := strings.Cut(string(buffer[:n]), "\nMONOTONIC_USEC=")
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"READY=1", "STATUS=two lines READY=1", "RELOADING=1", "STOPPING=1"}, got); diff != "" {
		t.Error(diff)
	}
}

func TestWithoutAManagerNothingHappens(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	t.Setenv("WATCHDOG_USEC", "")
	m := New(slog.New(slog.DiscardHandler))
	m.Ready()
	if err := m.Watchdog(t.Context(), func() error { panic("no one asked") }); err != nil {
		t.Error(err)
	}
}

func TestWatchdogIsFedOnlyWhileAlive(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, sent := recorder(40 * time.Second)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var stuck atomic.Bool
		go func() {
			_ = m.Watchdog(ctx, func() error {
				if stuck.Load() {
					return errors.New("stuck")
				}
				return nil
			})
		}()
		time.Sleep(61 * time.Second)
		synctest.Wait()
		if n := len(sent.list()); n != 7 { // at once and every 10 s
			t.Errorf("%d signs of life in 61 s", n)
		}
		stuck.Store(true)
		time.Sleep(time.Hour)
		synctest.Wait()
		if n := len(sent.list()); n != 7 {
			t.Errorf("%d signs of life after it was stuck", n-7)
		}
		stuck.Store(false)
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if n := len(sent.list()); n != 8 {
			t.Errorf("%d signs of life after it went on", n-7)
		}
	})
}

func TestWaitAsksForMoreTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, sent := recorder(0)
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Second)
		defer cancel()
		_ = m.Wait(ctx, "another agent runs")
		if diff := cmp.Diff(4, len(sent.list())); diff != "" {
			t.Error(diff)
		}
		if want := "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=another agent runs"; sent.list()[0] != want {
			t.Errorf("got %q, want %q", sent.list()[0], want)
		}
	})
}

func TestProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress(map[string]time.Duration{"fast": 10 * time.Second, "slow": time.Minute})
		p.Ended("source-mounts") // no limit: not waited for
		p.Ended("fast")
		if diff := cmp.Diff([]string{"slow"}, p.Waiting()); diff != "" {
			t.Error(diff)
		}
		select {
		case <-p.Done():
			t.Error("done before all have ended once")
		default:
		}
		p.Ended("slow")
		p.Ended("slow") // the second call has no effect
		<-p.Done()
		for range 7 { // fast continues, slow is stuck: one does not hide the other
			time.Sleep(9 * time.Second)
			p.Ended("fast")
		}
		if err := p.Stuck(); err == nil || err.Error() != "no progress: slow for 1m3s (limit 1m0s)" {
			t.Errorf("got %v", err)
		}
		p.Ended("slow")
		if err := p.Stuck(); err != nil {
			t.Error(err)
		}
		time.Sleep(11 * time.Second)
		if err := p.Stuck(); err == nil || !strings.Contains(err.Error(), "fast for 11s") {
			t.Errorf("got %v", err)
		}
	})
}

func TestProgressThatNeverBegan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewProgress(map[string]time.Duration{"first": 10 * time.Second})
		time.Sleep(10 * time.Second)
		if err := p.Stuck(); err != nil {
			t.Error(err)
		}
		time.Sleep(time.Second)
		if p.Stuck() == nil {
			t.Error("a first run that never ends is not noticed")
		}
	})
}
