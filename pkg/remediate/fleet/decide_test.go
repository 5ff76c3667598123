package fleet

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var noon = time.Date(2026, 11, 1, 12, 0, 0, 0, time.UTC)

func claim(node string, version uint64, age, duration time.Duration) Claim {
	return Claim{Name: "slot." + node, UID: fmt.Sprint(node, "-", version), Node: node, Version: version,
		Created: noon.Add(-age), For: duration}
}

func TestEvaluate(t *testing.T) {
	a, b, c := claim("a", 1, 0, time.Minute), claim("b", 2, 0, time.Minute), claim("c", 3, 0, time.Minute)
	for name, test := range map[string]struct {
		claims []Claim
		own    Claim
		limit  int
		want   Standing
	}{
		"alone":   {[]Claim{a}, a, 1, Standing{Listed: true, Holds: true, Holders: []string{"a"}}},
		"second":  {[]Claim{b, a}, b, 1, Standing{Listed: true, Before: 1, Holders: []string{"a"}, Waiting: 1}},
		"of two":  {[]Claim{c, b, a}, b, 2, Standing{Listed: true, Holds: true, Before: 1, Holders: []string{"a", "b"}, Waiting: 1}},
		"missing": {[]Claim{a}, b, 5, Standing{Holders: []string{"a"}}},
		"no slot": {[]Claim{a}, a, 0, Standing{Listed: true, Holders: []string{}, Waiting: 1}},
		"its own, dead": {[]Claim{claim("a", 1, 2*time.Minute, time.Minute)}, claim("a", 1, 0, 0), 1,
			Standing{}},
		"after a dead one": {[]Claim{claim("d", 1, 2*time.Minute, time.Minute), b}, b, 1,
			Standing{Listed: true, Holds: true, Holders: []string{"b"}}},
		"after one that is not dead for the slowest clock": {[]Claim{claim("d", 1, 2*time.Minute-time.Second,
			time.Minute), b}, b, 1, Standing{Listed: true, Before: 1, Holders: []string{"d"}, Waiting: 1}},
		"two claims of a node": {[]Claim{a, claim("a", 4, 0, time.Minute), b}, b, 2,
			Standing{Listed: true, Holds: true, Before: 1, Holders: []string{"a", "b"}}},
		"its own renewal": {[]Claim{a, claim("a", 4, 0, time.Minute), b}, claim("a", 4, 0, time.Minute), 2,
			Standing{Listed: true, Holds: true, Before: 1, Holders: []string{"a", "b"}}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(test.want, Evaluate(test.claims, test.own, test.limit, noon)); diff != "" {
				t.Error(diff)
			}
		})
	}
}

// A model of the fleet: nodes claim, read the list, stop by their own clocks, die, renew and give up at random, while
// the apiservers' clocks differ by up to a minute. Never more than limit nodes hold a slot at a time.
func TestNeverTooManyHolders(t *testing.T) {
	for seed := range uint64(300) {
		random := rand.New(rand.NewPCG(seed, 0))
		model(t, random, 1+random.IntN(4))
	}
}

// holding is a claim from its node's point of view.
type holding struct {
	claim    Claim
	deadline time.Time // by its own clock: here the true time
	holds    bool
}

func model(t *testing.T, random *rand.Rand, limit int) {
	t.Helper()
	var (
		now     = noon
		version uint64
		stored  []Claim
		nodes   = make([][]holding, 3+random.IntN(8))
		names   = func(i int) string { return fmt.Sprint("n", i) }
		remove  = func(uid string) {
			stored = slices.DeleteFunc(stored, func(c Claim) bool { return c.UID == uid })
		}
	)
	for range 400 {
		now = now.Add(time.Duration(random.IntN(20)) * time.Second)
		i := random.IntN(len(nodes))
		mine := slices.DeleteFunc(nodes[i], func(h holding) bool { return !now.Before(h.deadline) })
		switch random.IntN(5) {
		case 0, 1: // claims, also while an older claim still holds
			if len(mine) == 2 {
				break
			}
			version++
			duration := time.Duration(10+random.IntN(120)) * time.Second
			skew := time.Duration(random.IntN(30)) * time.Second // of the apiserver that stores it
			c := Claim{UID: fmt.Sprint(version), Node: names(i), Version: version, For: duration,
				Created: now.Add(-skew).Truncate(time.Second)}
			stored = append(stored, c)
			mine = append(mine, holding{claim: c, deadline: now.Add(duration - margin)})
		case 2, 3: // reads the list, by another apiserver whose clock is ahead
			date := now.Add(time.Duration(random.IntN(30)) * time.Second)
			for j := range mine {
				mine[j].holds = mine[j].holds || Evaluate(stored, mine[j].claim, limit, date).Holds
			}
		case 4: // releases one, or dies silently
			if len(mine) > 0 && random.IntN(3) > 0 {
				remove(mine[0].claim.UID)
				mine = mine[1:]
			}
		}
		nodes[i] = mine
		holders := 0
		for _, claims := range nodes {
			if slices.ContainsFunc(claims, func(h holding) bool { return h.holds && now.Before(h.deadline) }) {
				holders++
			}
		}
		if holders > limit {
			t.Fatalf("%d nodes hold one of %d slots", holders, limit)
		}
	}
}
