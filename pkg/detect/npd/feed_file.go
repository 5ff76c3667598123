package npd

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/internal/host"
	"github.com/nodeagent/nodeagent/internal/host/tailfile"
	"github.com/nodeagent/nodeagent/pkg/detect"
	"github.com/nodeagent/nodeagent/pkg/finding"
)

// translator reads lines of a log file according to its configuration: with one pattern for the time and one for the
// message; the last group of each counts.
type translator struct {
	timestamp, message *regexp.Regexp
	format             string
}

func newTranslator(config map[string]string) (t translator, err error) {
	if t.timestamp, err = regexp.Compile(config["timestamp"]); err != nil {
		return t, err
	}
	t.message, err = regexp.Compile(config["message"])
	t.format = config["timestampFormat"]
	return t, err
}

// translate returns the time and the message of a line; ok is false if it has none. A time without a year is within the
// last twelve months.
func (t translator) translate(text string, now time.Time) (at time.Time, message string, ok bool) {
	times := t.timestamp.FindStringSubmatch(text)
	if len(times) == 0 {
		return at, "", false
	}
	at, err := time.ParseInLocation(t.format, times[len(times)-1], time.Local)
	if err != nil {
		return at, "", false
	}
	if at.Year() == 0 {
		if at = at.AddDate(now.Year(), 0, 0); at.After(now.AddDate(0, 0, 1)) {
			at = at.AddDate(-1, 0, 0)
		}
	}
	messages := t.message.FindStringSubmatch(text)
	if len(messages) == 0 {
		return at, "", false
	}
	return at, messages[len(messages)-1], true
}

// fileFeed feeds a log monitor with the lines of a file.
type fileFeed struct {
	monitor    *logMonitor
	translator translator
	clock      func() finding.Timestamp

	mu    sync.Mutex // guards place
	place tailfile.FilePosition
}

func (m *Monitors) addFile(l *logMonitor, was saved) error {
	t, err := newTranslator(l.file.Log.PluginConfig)
	if err != nil {
		return err
	}
	e := &fileFeed{monitor: l, translator: t, clock: m.deps.Host.Clock, place: was.Place}
	m.remember(l, func(s *saved) { s.Place = e.at() })
	m.sources = append(m.sources, detect.Source{Name: detect.WakeSource(l.id),
		Run: func(ctx context.Context, _ func(detect.Change)) error {
			err := e.follow(ctx, m.deps.Host)
			if err != nil && ctx.Err() == nil {
				l.setReadable(err)
			}
			return err
		}})
	return nil
}

func (e *fileFeed) at() tailfile.FilePosition {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.place
}

func (e *fileFeed) follow(ctx context.Context, h *host.Host) error {
	if e.monitor.file.Log.LogPath == "" {
		return errors.New("the monitor has no path of a log")
	}
	began := e.clock()
	from := began.Wall.Add(e.monitor.times.start(began.SinceBoot) - began.SinceBoot)
	if e.at() != (tailfile.FilePosition{}) {
		// lines from the time without an agent count, too
		from = began.Wall.Add(e.monitor.times.delay - began.SinceBoot)
	}
	return tailfile.FollowFile(ctx, h, e.monitor.file.Log.LogPath, e.at(), func(text []byte, at tailfile.FilePosition) {
		e.observeRecord(string(text), from)
		e.mu.Lock()
		e.place = at
		e.mu.Unlock()
	}, func() { e.monitor.setReadable(nil) })
}

// observeRecord takes a line. It skips malformed lines, and those from before the time from.
func (e *fileFeed) observeRecord(text string, from time.Time) {
	if e.monitor.skips(text) {
		return
	}
	now := e.clock()
	at, message, ok := e.translator.translate(strings.ToValidUTF8(text, "\uFFFD"), now.Wall)
	if !ok || at.Before(from) {
		return
	}
	e.monitor.observe(line{text: message, at: since(at, now)})
}

// since converts a wall time to a time since boot: not before boot, and not later than now.
func since(at time.Time, now finding.Timestamp) time.Duration {
	return min(max(now.SinceBoot-now.Wall.Sub(at), 0), now.SinceBoot)
}
