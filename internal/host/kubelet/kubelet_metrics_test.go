package kubelet_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/nodeagent/nodeagent/internal/host/kubelet"
	"github.com/nodeagent/nodeagent/internal/host/owned/ownedtest"
)

func TestMain(m *testing.M) { ownedtest.Main(m) }

const metricsText = `# HELP kubelet_evictions [ALPHA] Cumulative number of pod evictions by eviction signal
# TYPE kubelet_evictions counter
kubelet_evictions{eviction_signal="memory.available"} 2
kubelet_evictions{eviction_signal="nodefs.available",} 1 1795242986000
kubelet_evictions_other 7
kubelet_pleg_last_seen_seconds 1.795242986e+09
prober_probe_total{container="a}\"b",pod="x\\y"} 85
`

func TestParseMetrics(t *testing.T) {
	got, err := kubelet.ParseMetrics(strings.NewReader(metricsText),
		[]string{"kubelet_evictions", "kubelet_pleg_last_seen_seconds", "prober_probe_total", "absent"})
	want := kubelet.Metrics{
		"kubelet_evictions": {{Labels: `eviction_signal="memory.available"`, Value: 2},
			{Labels: `eviction_signal="nodefs.available"`, Value: 1}},
		"kubelet_pleg_last_seen_seconds": {{Value: 1795242986}},
		"prober_probe_total":             {{Labels: `container="a}\"b",pod="x\\y"`, Value: 85}},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("error %v (-want +got):\n%s", err, diff)
	}
	if _, ok := got.Gauge("kubelet_evictions"); ok {
		t.Error("two samples are no gauge")
	}
	sample := got["prober_probe_total"][0]
	labels := []string{sample.Label("container"), sample.Label("pod"), sample.Label("po"), sample.Label("none")}
	if diff := cmp.Diff([]string{`a}"b`, `x\y`, "", ""}, labels); diff != "" {
		t.Error(diff)
	}
}

func TestParseMetricsMalformed(t *testing.T) {
	for name, text := range map[string]string{
		"no value":     "m\n",
		"no number":    "m{a=\"b\"} x\n",
		"NaN":          "m NaN\n",
		"open labels":  "m{a=\"b 1\n",
		"three fields": "m 1 2 3\n",
		"long line":    "other " + strings.Repeat("x", 1<<17) + "\n",
	} {
		t.Run(name, func(t *testing.T) {
			if got, err := kubelet.ParseMetrics(strings.NewReader(text), []string{"m"}); err == nil {
				t.Errorf("ParseMetrics() = %v", got)
			}
		})
	}
}

func FuzzParseMetrics(f *testing.F) {
	f.Add([]byte(metricsText))
	f.Add([]byte("m{a=\"\\"))
	f.Fuzz(func(t *testing.T, data []byte) {
		got, err := kubelet.ParseMetrics(strings.NewReader(string(data)), []string{"m", "kubelet_evictions",
			"prober_probe_total"})
		if err != nil && got != nil {
			t.Errorf("both %v and %v", got, err)
		}
		for _, samples := range got {
			for _, s := range samples {
				s.Label("a")
			}
		}
	})
}
