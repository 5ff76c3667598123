package csi

import (
	"strings"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/finding"
)

// observedAt returns observations at the given minutes of one boot.
func observedAt(minutes ...float64) []driverObservation {
	observations := make([]driverObservation, 0, len(minutes))
	for _, m := range minutes {
		at := finding.Timestamp{Boot: "b", SinceBoot: time.Hour + time.Duration(m*float64(time.Minute))}
		observations = append(observations, driverObservation{At: at, CSINode: "u"})
	}
	return observations
}

func TestDriverGoneSince(t *testing.T) {
	with := func(observations []driverObservation, i int, change func(*driverObservation)) []driverObservation {
		change(&observations[i])
		return observations
	}
	const driver = "a.example.com"
	for name, test := range map[string]struct {
		observations []driverObservation
		want         string // empty: proven gone
	}{
		"three times over ten minutes": {observedAt(0, 5, 10), ""},
		"one every two minutes":        {observedAt(0, 2, 4, 6, 8, 10), ""},
		"never":                        {nil, "not observed yet"},
		"once":                         {observedAt(10), "1 times over 0s"},
		"twice":                        {observedAt(0, 10), "2 times over 10m0s"},
		"three times, too short":       {observedAt(0, 5, 9.9), "3 times over 9m"},
		"three times, two at once":     {observedAt(0, 9.9, 10), "2 times"},
		"a long gap":                   {observedAt(0, 5, 50), "1 times"},
		"from the future":              {observedAt(0, 20, 10), "1 times"},
		"another boot": {with(observedAt(0, 5, 10), 0, func(l *driverObservation) {
			l.At.Boot = "a"
		}), "2 times"},
		"no boot known": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.At.Boot = ""
		}), "not known"},
		"another CSINode": {with(observedAt(0, 5, 10), 0, func(l *driverObservation) {
			l.CSINode = "v"
		}), "2 times"},
		"seen first": {with(observedAt(0, 5, 10), 0, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "2 times"},
		"seen in between": {with(observedAt(0, 5, 10), 1, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "1 times"},
		"seen now": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{driver}
		}), "CSINode names it"},
		"seen now, in other letters": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{"A.Example.com"}
		}), "CSINode names it"},
		"answers now": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.Answering = []string{"A.example.com"}
		}), "answers"},
		"a directory of its name": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.InUse = []string{"/k/plugins/A.EXAMPLE.com/x"}
		}), "in use"},
		"a socket that does not answer with a name": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.Unknown = []string{"/k/plugins/x.sock"}
		}), "does not report"},
		"an unknown socket in between": {with(observedAt(0, 5, 10), 1, func(l *driverObservation) {
			l.Unknown = []string{"/k/plugins/x.sock"}
		}), "1 times"},
		"another driver is there always": {with(observedAt(0, 5, 10), 2, func(l *driverObservation) {
			l.Named = []string{"b.example.com"}
		}), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got := goneSince(test.observations, driver)
			if (got == "") != (test.want == "") || !strings.Contains(got, test.want) {
				t.Errorf("%q, want %q", got, test.want)
			}
		})
	}
}
