package checkkit

import (
	"testing"
	"time"
)

func TestWindow(t *testing.T) {
	type sampled struct {
		at     time.Duration
		values map[string]uint64
	}
	one := func(at time.Duration, v uint64) sampled { return sampled{at, map[string]uint64{"c": v}} }
	for _, tt := range []struct {
		name       string
		oneProcess bool
		samples    []sampled
		by         uint64
		in         time.Duration
		ok         bool
	}{
		{name: "nothing"},
		{name: "first sample", samples: []sampled{one(time.Minute, 5)}},
		{name: "two", samples: []sampled{one(0, 5), one(time.Minute, 7)}, by: 2, in: time.Minute, ok: true},
		{name: "whole span and no more", by: 5, in: 5 * time.Minute, ok: true, samples: []sampled{
			one(0, 0), one(time.Minute, 10), one(3*time.Minute, 12), one(6*time.Minute, 15)}},
		{name: "runs within the gap", by: 8, in: time.Minute + 2*time.Second, ok: true, samples: []sampled{
			one(0, 1), one(time.Minute, 5), one(time.Minute+time.Second, 8), one(time.Minute+2*time.Second, 9)}},
		{name: "reset", by: 1, in: time.Minute, ok: true, samples: []sampled{
			one(0, 100), one(time.Minute, 3), one(2*time.Minute, 4)}},
		{name: "vanished and back", samples: []sampled{
			one(0, 1), {time.Minute, map[string]uint64{}}, one(2*time.Minute, 9)}},
		{name: "appeared", samples: []sampled{{0, map[string]uint64{"d": 1}}, one(time.Minute, 9)}},
		{name: "another machine's uptime", samples: []sampled{one(time.Hour, 1), one(time.Minute, 9)}},
		{name: "one process: appeared", oneProcess: true, by: 9, in: time.Minute, ok: true, samples: []sampled{
			{0, map[string]uint64{"d": 1}}, one(time.Minute, 9)}},
		{name: "one process: another counter decreased", oneProcess: true, samples: []sampled{
			{0, map[string]uint64{"c": 1, "d": 7}}, {time.Minute, map[string]uint64{"c": 2, "d": 1}}}},
		{name: "one process: vanished and back", oneProcess: true, by: 8, in: 2 * time.Minute, ok: true,
			samples: []sampled{one(0, 1), {time.Minute, map[string]uint64{}}, one(2*time.Minute, 9)}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := Window[uint64]{Span: 5 * time.Minute, OneProcess: tt.oneProcess}
			for _, s := range tt.samples {
				w.Add(s.at, s.values)
			}
			if by, in, ok := w.Rise("c"); by != tt.by || in != tt.in || ok != tt.ok {
				t.Errorf("Rise: got %d in %s, %v, want %d in %s, %v", by, in, ok, tt.by, tt.in, tt.ok)
			}
		})
	}
}

// The size is bounded for any number of calls and any span.
func TestWindowIsBounded(t *testing.T) {
	w := Window[float64]{Span: 24 * time.Hour}
	for at := range 10_000 {
		w.Add(time.Duration(at)*time.Second, map[string]float64{"c": float64(at)})
	}
	if len(w.samples) > maxSamples {
		t.Errorf("%d samples", len(w.samples))
	}
	if _, _, ok := w.Rate("c", time.Minute); !ok {
		t.Error("no rate")
	}
}
