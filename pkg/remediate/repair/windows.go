package repair

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Window is when disruptive repairs may begin, by the node's local time.
type Window struct {
	Days []string `yaml:"days"` // mon … sun, on which it begins; empty: every day
	From string   `yaml:"from"` // HH:MM
	To   string   `yaml:"to"`   // HH:MM, on the next day if not after From
}

// weekdays are the names of days in a configuration, in the order of time.Weekday.
func weekdays() []string { return []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"} }

// minutes returns the time of day in minutes.
func minutes(clock string) (int, error) {
	at, err := time.Parse("15:04", clock)
	if err != nil {
		return 0, fmt.Errorf("%q is not a time of day, such as 22:30", clock)
	}
	return at.Hour()*60 + at.Minute(), nil
}

// includes reports whether a time is in the window. A malformed window includes no time.
func (w Window) includes(at time.Time) bool {
	from, errFrom := minutes(w.From)
	to, errTo := minutes(w.To)
	if errFrom != nil || errTo != nil {
		return false
	}
	now, today := at.Hour()*60+at.Minute(), int(at.Weekday())
	if from < to {
		return w.on(today) && from <= now && now < to
	}
	return w.on(today) && now >= from || w.on((today+6)%7) && now < to // it began yesterday
}

func (w Window) on(day int) bool { return len(w.Days) == 0 || slices.Contains(w.Days, weekdays()[day]) }

func (w Window) String() string {
	days := "every day"
	if len(w.Days) > 0 {
		days = strings.Join(w.Days, ",")
	}
	return fmt.Sprintf("%s %s-%s", days, w.From, w.To)
}

// Validate returns why the window is invalid.
func (w Window) Validate() error {
	for _, day := range w.Days {
		if !slices.Contains(weekdays(), day) {
			return fmt.Errorf("days: %q: must be %s", day, strings.Join(weekdays(), ", "))
		}
	}
	for _, clock := range []string{w.From, w.To} {
		if _, err := minutes(clock); err != nil {
			return err
		}
	}
	return nil
}

// closedWindow returns why a disruptive action may not begin now.
func closedWindow(windows []Window, at time.Time) string {
	if len(windows) == 0 || slices.ContainsFunc(windows, func(w Window) bool { return w.includes(at) }) {
		return ""
	}
	texts := make([]string, 0, len(windows))
	for _, w := range windows {
		texts = append(texts, w.String())
	}
	return "outside of the maintenance windows (" + strings.Join(texts, "; ") + ")"
}
