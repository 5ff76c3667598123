package kinds_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/nodeagent/nodeagent/internal/host/hosttest"
	"github.com/nodeagent/nodeagent/pkg/inspect/kinds"
	"github.com/nodeagent/nodeagent/pkg/inspect/object"
)

// BenchmarkPass inspects a quiet node of 100 pods with 300 containers, all of them real except the answers of CRI:
// cgroups in all hierarchies, processes, volumes, network namespaces with veth pairs and cached CNI results. It
// measures the CPU time of one pass, that of the kernel included.
func BenchmarkPass(b *testing.B) {
	hosttest.PrivateNetwork(b)
	n := newNode(b)
	const pods, perPod = 100, 3
	for p := range pods {
		uid := fmt.Sprintf("aaaaaaaa-0000-4000-8000-%012d", p)
		sandboxID := fmt.Sprintf("%064x", p)
		n.Add(uid, fmt.Sprintf("pod-%d", p))
		n.Sandbox(uid, sandboxID)
		for _, volume := range []string{"kubernetes.io~projected/token", "kubernetes.io~configmap/c"} {
			n.Mount("test", n.PodDir(uid, "volumes", volume), "tmpfs", 0)
		}
		for c := range perPod + 1 {
			dirs := n.Cgroups(fmt.Sprintf("%s/kubepods/burstable/pod%s/%064x", n.Host.Paths.CgroupRoot, uid, p<<8+c))
			n.Process(quietly(dirs)...)
		}
		netns := filepath.Join(n.Host.Paths.NetnsDirs[0], "cni-"+uid)
		hosttest.PinNetns(b, netns)
		hosttest.Veth(b, fmt.Sprintf("bench%d", p), "eth0", netns)
		cached := fmt.Sprintf(
			`{"kind":"cniCacheV1","containerId":%q,"ifName":"eth0","networkName":"n","netns":%q,"cniArgs":[["K8S_POD_UID",%q]]}`, sandboxID, netns, uid)
		if err := os.WriteFile(filepath.Join(n.Mkdir(n.Host.Paths.CNICacheDir, "results"), uid), []byte(cached),
			0o600); err != nil {
			b.Fatal(err)
		}
	}
	i := n.inspector()
	before := cpu()
	var report object.Report
	for b.Loop() {
		report, _ = i.Pass(b.Context(), nil)
	}
	b.ReportMetric(float64((cpu()-before).Microseconds())/1000/float64(b.N), "cpu-ms/op")
	b.ReportMetric(float64(len(report.Objects)), "objects")
	b.ReportMetric(float64(n.Requests), "apiserver-requests")
	for _, kind := range kinds.Kinds() {
		counts := verdicts(report, kind)
		if counts[object.Leftover]+counts[object.Candidate]+counts[object.Unknown] > 0 {
			b.Errorf("%s: %v", kind, counts)
		}
	}
}

// quietly leaves out the cpuset hierarchy, which takes no process before it is configured.
func quietly(dirs []string) []string {
	var rest []string
	for _, dir := range dirs {
		if !strings.Contains(dir, "/cpuset/") {
			rest = append(rest, dir)
		}
	}
	return rest
}

func cpu() time.Duration {
	var usage unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &usage) != nil {
		return 0
	}
	return time.Duration(usage.Utime.Nano() + usage.Stime.Nano())
}
