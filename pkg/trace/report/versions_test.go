package report

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/stage"
)

// times returns log-normal times of the sandbox, in whole seconds for a part of them as Kubernetes gives them.
func times(r *rand.Rand, n int, median float64) Histogram {
	h := Histogram{}
	for range n {
		ms := median * math.Exp(0.5*r.NormFloat64())
		if r.IntN(2) == 0 {
			ms = math.Round(ms/1000) * 1000
		}
		h.Add(int64(ms))
	}
	return h
}

func cells(r *rand.Rand, of ...any) (all []Cell) { // pool, kubelet, n, median
	for i := 0; i < len(of); i += 4 {
		for hour := range int64(24) {
			all = append(all, Cell{Hour: hour, Stage: stage.Sandbox, Build: record.Build{Pool: of[i].(string), Kubelet: of[i+1].(string), Runtime: "r"},
				Times: times(r, of[i+2].(int)/24, of[i+3].(float64))})
		}
	}
	return all
}

func named(slower []Slower) string {
	text := ""
	for _, s := range slower {
		text += fmt.Sprintf("%s %s of pool %q slower than %s; ", s.Component, s.Version, s.Pool, s.Than)
	}
	return text
}

// 5,000 pods run on two versions of kubelet, with the sandbox 40 % slower on one: the slower version is named, in its pool.
// Versions of different pools are not compared, nor few samples.
func TestSlowerVersion(t *testing.T) {
	for seed := range uint64(20) {
		r := rand.New(rand.NewPCG(seed, 1)) //nolint:gosec // a simulation
		_, slower := Compare(cells(r, "a", "v1.36.3", 2500, 2000.0, "a", "v1.36.4", 2500, 2800.0, "b", "v1.35.0", 2500, 9000.0, "a", "v1.34.0", 150, 9000.0))
		if got := named(slower); got != `kubelet v1.36.4 of pool "a" slower than v1.36.3; ` {
			t.Errorf("seed %d: %s", seed, got)
		}
	}
}

// Equal versions give no report in 20 weeks, with different mixes of pools, one of which is slow.
func TestEqualVersions(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 7)) //nolint:gosec // a simulation
	for week := range 20 {
		n := 500 + r.IntN(4000)
		versions, slower := Compare(cells(r, "fast", "v1", n, 1500.0, "fast", "v2", 5000-n, 1500.0, "slow", "v1", 5000-n, 6000.0, "slow", "v2", n, 6000.0))
		if len(slower) > 0 || len(versions) != 6 { // kubelet in two pools, and the runtime
			t.Errorf("week %d: %s of %d", week, named(slower), len(versions))
		}
	}
}

// A small difference that is certain, and a large one that is not, are none.
func TestLarger(t *testing.T) {
	a, b := Histogram{20: 100, 21: 100}, Histogram{20: 110, 21: 90}
	if p := larger(a, b); p < 0.1 || p > 0.2 { // exact by hand: z = 1.00, p = 0.16
		t.Error(p)
	}
	if p := larger(a, a); math.Abs(p-0.5) > 0.01 {
		t.Error(p)
	}
	if p := larger(Histogram{5: 300}, Histogram{5: 300}); p != 1 {
		t.Error(p)
	}
	if p := larger(Histogram{9: 300}, Histogram{5: 300}); p > 1e-9 {
		t.Error(p)
	}
}

// A component is compared in the stages that it is responsible for.
func TestComponents(t *testing.T) {
	for name, of := range map[string]struct {
		stage stage.ID
		build func(version string) record.Build
		want  string
	}{
		"network":                    {stage.Sandbox, func(v string) record.Build { return record.Build{Network: v} }, "network"},
		"network, of another stage":  {stage.Mount, func(v string) record.Build { return record.Build{Network: v} }, ""},
		"storage":                    {stage.Mount, func(v string) record.Build { return record.Build{Storage: v} }, "storage"},
		"scheduler":                  {stage.Schedule, func(v string) record.Build { return record.Build{Scheduler: v} }, "scheduler"},
		"apiserver":                  {stage.Reported, func(v string) record.Build { return record.Build{Apiserver: v} }, "apiserver"},
		"kubelet, not the scheduler": {stage.Schedule, func(v string) record.Build { return record.Build{Kubelet: v} }, ""},
		"nothing is known":           {stage.Sandbox, func(string) record.Build { return record.Build{} }, ""},
	} {
		r := rand.New(rand.NewPCG(1, 1)) //nolint:gosec // a simulation
		_, slower := Compare([]Cell{{Stage: of.stage, Build: of.build("v1"), Times: times(r, 2000, 1000)},
			{Stage: of.stage, Build: of.build("v2"), Times: times(r, 2000, 2000)}})
		got := ""
		for _, s := range slower {
			got += s.Component
		}
		if got != of.want {
			t.Errorf("%s: %q", name, got)
		}
	}
}
