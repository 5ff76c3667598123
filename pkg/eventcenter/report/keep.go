// Package report makes the daily reports of a fleet: faults found, ended by themselves or by a repair, faults that need
// people, and the nodes' availability. The model counts them, by the center's time of receipt. Each finished day has a
// file of its own, so that a report outlives the events behind it.
//
// docs/event-center-reference.md defines each number. Only the model decides; reports only add up days, and the tests
// count the same numbers with plain SQL.
package report

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"github.com/nodeagent/nodeagent/pkg/eventcenter/journal"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/model"
	"github.com/nodeagent/nodeagent/pkg/web"
)

const (
	suffix   = ".json.gz"
	keepDays = 400     // 13 months
	maxDay   = 2 << 30 // bytes of a day's file, unpacked

	// behind is how far counted time lags the clock: the journal stores events slightly after their receipt.
	behind = 10 * time.Second
)

// Options are the options of a keeper.
type Options struct {
	Dir     string
	Journal journal.Reader
	Model   *model.Model // the model of the journal, before the records after its checkpoint
	Log     *slog.Logger
	Now     func() time.Time // nil: time.Now
	Ready   func() error     // why the journal may lack events of other replicas; nil: never
}

// Keeper stores a file for each finished day of a model. The counts of the present day are in the model's checkpoint.
type Keeper struct {
	Options
	stored uint64 // offset of the newest stored day at the start

	storing  sync.Mutex // held while days are stored; guards replaced
	replaced bool       // a day was stored since the start
	mu       sync.Mutex // guards the field below
	finished []*model.Day
}

// Open continues after the newest stored day.
func Open(o Options) (*Keeper, error) {
	if o.Now == nil {
		o.Now = time.Now
	}
	k := &Keeper{Options: o}
	if err := os.MkdirAll(o.Dir, 0o700); err != nil {
		return nil, err
	}
	names, err := k.names()
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Backward(names) {
		d, err := k.usable(name)
		if err == nil {
			k.stored = d.Offset
			o.Model.Continue(d, o.Journal.Bounds().Oldest-1)
			break
		}
		o.Log.Error("discard a stored day of the reports: counting it again from the journal", "day", name, "err", err)
	}
	o.Model.Finished = func(d *model.Day) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.finished = append(k.finished, d)
	}
	return k, nil
}

// Stored returns the offset up to which stored days counted the journal at the start.
func (k *Keeper) Stored() uint64 { return k.stored }

// usable returns a stored day, if it is finished and counts this journal.
func (k *Keeper) usable(name string) (*model.Day, error) {
	d, err := load(k.path(name))
	bounds := k.Journal.Bounds()
	switch {
	case err != nil:
		return nil, err
	case d.Journal != bounds.Journal || d.Offset > bounds.Newest:
		return nil, fmt.Errorf("it is of journal %s up to %d, this is %s up to %d", d.Journal, d.Offset, bounds.Journal,
			bounds.Newest)
	case !d.Complete:
		return nil, errors.New("it is not finished") // by an older version
	}
	return &d.Day, nil
}

// ready reports whether the journal has all events. If not, time is counted by events alone.
func (k *Keeper) ready() bool { return k.Ready == nil || k.Ready() == nil }

// Follow counts the time since the last event, and stores the days that are over, one by one.
func (k *Keeper) Follow() error {
	for more := true; more; {
		if !k.ready() {
			return k.Store()
		}
		more = k.Model.Advance(k.Now().Add(-behind))
		if err := k.Store(); err != nil {
			return err
		}
	}
	return nil
}

// Store stores the days that are over.
func (k *Keeper) Store() error {
	k.storing.Lock()
	defer k.storing.Unlock()
	for {
		k.mu.Lock()
		days := k.finished
		k.mu.Unlock()
		if len(days) == 0 {
			return nil
		}
		if err := k.store(days[0]); err != nil {
			return fmt.Errorf("report of %s: %w", days[0].Name, err)
		}
		k.mu.Lock()
		k.finished = slices.Delete(k.finished, 0, 1)
		k.mu.Unlock()
	}
}

// store stores a finished day, and removes days that are too old.
func (k *Keeper) store(d *model.Day) error {
	was, err := k.usable(d.Name)
	if err == nil && !k.replaced && was.Before <= d.Before && was.Offset >= d.Offset {
		return nil // counted again after a start, but now without the nodes' places
	}
	if err := save(k.path(d.Name), &dayFile{version, k.Journal.Bounds().Journal, *d}); err != nil {
		return err
	}
	k.replaced = true // the stored days after it may begin elsewhere than it ends
	oldest := d.To.AddDate(0, 0, -keepDays).Format(time.DateOnly)
	names, err := k.names()
	for _, name := range names {
		if name < oldest {
			err = errors.Join(err, os.Remove(k.path(name)))
		}
	}
	return err
}

func (k *Keeper) path(day string) string { return filepath.Join(k.Dir, File(day)) }

// Report returns the report of the day or week that contains date, as 2026-11-23, today or yesterday; empty: today. If
// there is none, the error is a *web.Refusal.
func (k *Keeper) Report(p Period, date string) (Report, error) {
	now := k.Now().In(k.Model.Location)
	y, m, d := now.Date()
	day := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
	switch date {
	case "", "today":
	case "yesterday":
		day = day.AddDate(0, 0, -1)
	default:
		var err error
		if day, err = time.Parse(time.DateOnly, date); err != nil {
			return Report{}, &web.Refusal{Status: http.StatusBadRequest,
				Reason: fmt.Sprintf("date %.40q: want a day as 2026-11-23, today or yesterday", date)}
		}
	}
	name, count := day.Format(time.DateOnly), 1
	switch p {
	case Daily:
	case Weekly:
		for day.Weekday() != time.Monday {
			day = day.AddDate(0, 0, -1)
		}
		y, w := day.ISOWeek()
		name, count = fmt.Sprintf("%04d-W%02d", y, w), 7
	default:
		return Report{}, &web.Refusal{Status: http.StatusNotFound, Reason: "there is no such report: want daily or weekly"}
	}
	if err := k.Follow(); err != nil {
		return Report{}, err
	}
	var today *model.Day
	present := k.Model.DayName()
	if day.Format(time.DateOnly) <= present && present < day.AddDate(0, 0, count).Format(time.DateOnly) {
		through := time.Time{}
		if k.ready() {
			through = k.Now()
		}
		today = k.Model.Today(through)
	}
	return k.build(p, name, day, count, today)
}

// build makes the report of count days from first on; today is the present day, or nil if the report does not reach it.
func (k *Keeper) build(p Period, name string, first time.Time, count int, today *model.Day) (Report, error) {
	b := newBuilder(p, name)
	var missing []string
	for i := range count {
		date := first.AddDate(0, 0, count-1-i).Format(time.DateOnly)
		switch d, err := k.day(date, today); {
		case err == nil:
			b.add(d)
		case !errors.Is(err, os.ErrNotExist):
			k.Log.Error("read a day of the reports failed", "day", date, "err", err)
			missing = append(missing, date)
		case date <= k.Now().In(k.Model.Location).Format(time.DateOnly):
			missing = append(missing, date)
		}
	}
	slices.Reverse(missing)
	if b.days == 0 {
		names, err := k.names()
		if present := k.Model.DayName(); present != "" {
			names = append(names, present)
		}
		reason := "there is no report: nothing was received yet"
		if !k.ready() {
			return Report{}, &web.Refusal{Status: http.StatusServiceUnavailable, RetryWithin: 10 * time.Second,
				Reason: "not counted yet: this replica may lack events"}
		}
		if len(names) > 0 {
			reason = fmt.Sprintf("there is no report of %s: there are of %s to %s", name, names[0], slices.Max(names))
		}
		return Report{}, cmp.Or[error](err, &web.Refusal{Status: http.StatusNotFound, Reason: reason})
	}
	var before []head
	for i := range count {
		if h, _, err := read(k.path(first.AddDate(0, 0, i-count).Format(time.DateOnly)), true); err == nil {
			before = append(before, h)
		}
	}
	r := b.end(before)
	r.Missing, r.Partial = missing, r.Partial || len(missing) > 0 || p == Weekly && b.days < count
	return r, nil
}

// day returns a day: the present one, or a stored one.
func (k *Keeper) day(name string, today *model.Day) (*model.Day, error) {
	if today != nil && today.Name == name {
		return today, nil
	}
	f, err := load(k.path(name))
	if err != nil {
		return nil, err
	}
	return &f.Day, nil
}
