package release

import (
	"flag"
	"os"
	"runtime"
	"runtime/debug"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/nodeagent/nodeagent/pkg/inspect/object"
	"github.com/nodeagent/nodeagent/test/need"
)

var (
	hostileSeed  = flag.Uint64("hostile.seed", 0, "run the one hostile node of this seed")
	hostileNodes = flag.Uint64("hostile.nodes", someHostileNodes, "how many hostile nodes are made")
)

// Whatever the pods, and whoever fails or lies: no living object is touched, no existing object is reported as
// released, and every act has its intent in the journal. Seeds that failed once are in testdata/hostile-seeds.
func TestHostileNodes(t *testing.T) {
	need.Nothing(t)
	t.Parallel()
	seeds := []uint64{*hostileSeed}
	if *hostileSeed == 0 {
		seeds = failedSeeds(t)
		for i := range *hostileNodes {
			seeds = append(seeds, i+1)
			if i%4 == 0 {
				seeds = append(seeds, refusedSeeds+i)
			}
		}
	}
	var acts, released, byNames atomic.Int64
	lives(t, seeds, func(n *hostile) {
		acts.Add(int64(n.acts))
		for _, p := range n.pods {
			if p.life == deleted && p.empty() {
				released.Add(1)
				if n.faults.refused {
					byNames.Add(1)
				}
			}
		}
	})
	t.Logf("%d nodes: %d acts, %d dead pods released whole, %d of them where kubelet refuses", len(seeds), acts.Load(),
		released.Load(), byNames.Load())
	if *hostileSeed == 0 && (released.Load() < int64(len(seeds)/20) || byNames.Load() == 0) {
		t.Errorf("only %d dead pods were released: this proves little", released.Load())
	}
}

// lives runs the agent on the nodes of some seeds, as many at once as there are processors, and checks each.
func lives(t *testing.T, seeds []uint64, check func(n *hostile)) {
	t.Helper()
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // a node leaves little in memory
	var next atomic.Int64
	t.Run("nodes", func(t *testing.T) {
		for range runtime.GOMAXPROCS(0) {
			t.Run("", func(t *testing.T) {
				t.Parallel()
				for at := next.Add(1) - 1; at < int64(len(seeds)); at = next.Add(1) - 1 {
					n := newHostile(t, seeds[at])
					n.run()
					for _, violation := range n.violations {
						t.Errorf("-hostile.seed=%d: %s", seeds[at], violation)
					}
					check(n)
					n.close()
				}
			})
		}
	})
}

func failedSeeds(t *testing.T) []uint64 {
	t.Helper()
	data, err := os.ReadFile("testdata/hostile-seeds")
	if err != nil {
		t.Fatal(err)
	}
	var seeds []uint64
	for line := range strings.Lines(string(data)) {
		text, _, _ := strings.Cut(line, "#")
		if text = strings.TrimSpace(text); text == "" {
			continue
		}
		seed, err := strconv.ParseUint(text, 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		seeds = append(seeds, seed)
	}
	return seeds
}

// When all witnesses are right, all leftovers are released, and nothing else.
func TestHonestNodes(t *testing.T) {
	need.Nothing(t)
	for seed := range uint64(100) {
		n := newHostile(t, seed+1_000_000)
		n.calm = true
		n.run()
		for _, violation := range n.violations {
			t.Errorf("seed %d: %s", seed, violation)
		}
		for _, p := range n.pods {
			if !p.life.alive() && !p.empty() && n.provable() {
				t.Errorf("seed %d: left behind: %s", seed, p)
			}
		}
		n.close()
	}
}

// provable reports whether the lists can be proven to be this node's, which takes an ordinary living pod, and the
// breaker lets them pass.
func (n *hostile) provable() bool {
	proof, orphans := false, 0
	for _, p := range n.pods {
		proof = proof || p.life.alive() && p.life != static
		if !p.life.alive() {
			orphans++
		}
	}
	return proof && orphans <= object.DefaultSettings().MassOrphaning
}
