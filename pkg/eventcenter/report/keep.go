package report

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
)

const (
	suffix   = ".json.gz"
	keepDays = 400     // 13 months
	page     = 1000    // records
	maxDay   = 2 << 30 // bytes of a day's file, unpacked

	catchUp = 2 * time.Second // how long a report waits for pending events of the journal

	// behind is how far counted time lags the clock: the journal stores events slightly after their receipt.
	behind = 10 * time.Second
)

// Options are the options of a keeper.
type Options struct {
	Dir      string
	Journal  journal.Reader
	Log      *slog.Logger
	Location *time.Location       // nil: UTC
	Now      func() time.Time     // nil: time.Now
	Places   func() map[Key]Place // of the present nodes; nil: unknown
}

// Keeper counts the journal on demand, and stores a file for each finished day. The counts of the unfinished day are
// only in memory: they are computed again after a start.
type Keeper struct {
	Options

	mu   sync.Mutex // guards the fields below
	fold Fold
	read uint64 // up to this offset, even if there was no event to count
}

// Open continues after the newest stored day.
func Open(o Options) (*Keeper, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	if o.Location == nil {
		o.Location = time.UTC
	}
	k := &Keeper{Options: o}
	k.fold = Fold{Location: o.Location, Close: k.closed}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	names, err := k.names()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Backward(names) {
		d, err := load(filepath.Join(k.Dir, name+suffix))
		if bounds := o.Journal.Bounds(); err == nil && (d.Journal != bounds.Journal || d.Offset > bounds.Newest) {
			err = fmt.Errorf("it is of journal %s up to %d, this is %s up to %d", d.Journal, d.Offset, bounds.Journal,
				bounds.Newest)
		}
		if err != nil {
			o.Log.Error("discard a stored day of the reports: counting it again from the journal", "day", name,
				"err", err)
			continue
		}
		if d.Complete { // an older version may have stored an unfinished one
			k.fold.Day = d.next(o.Location)
			break
		}
	}
	return k, nil
}

// closed stores a finished day, and removes days that are too old.
func (k *Keeper) closed(d *Day) error {
	k.place(d)
	if err := save(filepath.Join(k.Dir, d.Name+suffix), d); err != nil {
		return fmt.Errorf("report of %s: %w", d.Name, err)
	}
	oldest := d.To.AddDate(0, 0, -keepDays).Format(time.DateOnly)
	names, err := k.names()
	for _, name := range names {
		if name < oldest {
			err = errors.Join(err, os.Remove(filepath.Join(k.Dir, name+suffix)))
		}
	}
	return err
}

// place records where nodes are now. Removed nodes keep their place.
func (k *Keeper) place(d *Day) {
	if k.Places == nil {
		return
	}
	places := k.Places()
	for _, n := range d.Nodes {
		if p, ok := places[Key{n.Cluster, n.Name}]; ok && p != (Place{}) {
			n.Place = p
		}
	}
}

// Follow counts the whole journal, then the time since.
func (k *Keeper) Follow(ctx context.Context) error {
	for {
		more, err := k.step(ctx)
		if err != nil || !more {
			return err
		}
	}
}

// step counts one page of the journal. If there is none, it counts the time.
func (k *Keeper) step(ctx context.Context) (more bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	bounds, now := k.Journal.Bounds(), k.Now()
	after := k.offset()
	if after >= bounds.Newest {
		return false, k.fold.Advance(now.Add(-behind))
	}
	lost := uint64(0)
	if after+1 < bounds.Oldest {
		lost, after = bounds.Oldest-1-after, bounds.Oldest-1
	}
	got, err := k.Journal.Read(ctx, journal.Query{After: after, Limit: int(min(page, bounds.Newest-after))})
	if err != nil {
		return false, err
	}
	for _, r := range got.Records {
		if err := k.fold.Apply(r, bounds.Journal); err != nil {
			return false, err
		}
	}
	k.read = got.Next
	for _, g := range got.Gaps {
		lost += g.To - g.From + 1
	}
	if d := k.fold.Day; d != nil {
		d.Offset = max(d.Offset, got.Next)
		if after > d.Before { // events lost before the first day do not count
			d.Lost += lost
		}
	}
	return got.Next > after, nil
}

func (k *Keeper) offset() uint64 {
	if k.fold.Day == nil {
		return k.read
	}
	return k.fold.Day.Offset
}

// Offset returns the offset up to which the journal is counted.
func (k *Keeper) Offset() uint64 {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.offset()
}

// NoReportError means that a day has no report.
type NoReportError struct{ Name, Oldest, Newest string }

func (e *NoReportError) Error() string {
	if e.Newest == "" {
		return "there is no report: nothing was received yet"
	}
	return fmt.Sprintf("there is no report of %s: there are of %s to %s", e.Name, e.Oldest, e.Newest)
}

// DateError is an invalid date.
type DateError struct{ Text string }

func (e *DateError) Error() string {
	return fmt.Sprintf("date %.40q: want a day as 2026-11-23, today or yesterday", e.Text)
}

// Report returns the report of the day or week that contains date; empty: today.
func (k *Keeper) Report(ctx context.Context, p Period, date string) (Report, error) {
	now := k.Now().In(k.Location)
	y, m, d := now.Date()
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch date {
	case "", "today":
	case "yesterday":
		day = day.AddDate(0, 0, -1)
	default:
		var err error
		if day, err = time.Parse(time.DateOnly, date); err != nil {
			return Report{}, &DateError{date}
		}
	}
	limited, cancel := context.WithTimeout(ctx, catchUp)
	err := k.Follow(limited)
	cancel()
	if err != nil && limited.Err() == nil {
		return Report{}, err
	}
	name, count := day.Format(time.DateOnly), 1
	if p == Weekly {
		for day.Weekday() != time.Monday {
			day = day.AddDate(0, 0, -1)
		}
		y, w := day.ISOWeek()
		name, count = fmt.Sprintf("%04d-W%02d", y, w), 7
	}
	return k.build(p, name, day, count)
}

func (k *Keeper) build(p Period, name string, first time.Time, count int) (Report, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	now := k.Now()
	b := newBuilder(p, name)
	var missing []string
	for i := range count {
		date := first.AddDate(0, 0, count-1-i).Format(time.DateOnly)
		switch d, err := k.day(date); {
		case err == nil:
			through := d.Through
			if now.After(through) && k.offset() >= k.Journal.Bounds().Newest {
				through = now
			}
			b.add(d, through.UTC())
		case !errors.Is(err, os.ErrNotExist):
			k.Log.Error("read a day of the reports failed", "day", date, "err", err)
			missing = append(missing, date)
		case date <= now.In(k.Location).Format(time.DateOnly):
			missing = append(missing, date)
		}
	}
	slices.Reverse(missing)
	if b.days == 0 {
		names, err := k.names()
		e := &NoReportError{Name: name}
		if k.fold.Day != nil {
			names = append(names, k.fold.Day.Name)
		}
		if len(names) > 0 {
			e.Oldest, e.Newest = names[0], slices.Max(names)
		}
		return Report{}, cmp.Or[error](err, e)
	}
	var before []head
	for i := range count {
		if h, err := k.head(first.AddDate(0, 0, i-count).Format(time.DateOnly)); err == nil {
			before = append(before, h)
		}
	}
	r := b.end(before)
	r.Missing, r.Partial = missing, r.Partial || len(missing) > 0 || p == Weekly && b.days < count
	return r, nil
}

func (k *Keeper) head(name string) (h head, err error) {
	if d := k.fold.Day; d != nil && d.Name == name {
		return headOf(d), nil
	}
	h, _, err = read(filepath.Join(k.Dir, name+suffix), true)
	return h, err
}

// day returns a day: the present one, or a stored one.
func (k *Keeper) day(name string) (*Day, error) {
	if d := k.fold.Day; d != nil && d.Name == name {
		k.place(d)
		return d, nil
	}
	return load(filepath.Join(k.Dir, name+suffix))
}
