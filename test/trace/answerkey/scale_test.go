package answerkey

import (
	"bytes"
	"database/sql"
	"encoding/json"
	"flag"
	"fmt"
	"io/fs"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	"k8s.io/apimachinery/pkg/types"
	_ "modernc.org/sqlite" // database/sql's driver

	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
)

var (
	present = flag.Int("pods", 100_000, "pods that exist when tracecenter starts")
	loadFor = flag.Duration("for", 10*time.Minute, "how long pods are created after that")
)

// scalePolicy logs the requests of tracecenter alone.
const scalePolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived]
rules:
- {level: Metadata, users: [agent]}
- {level: None}
`

// large makes a pod as large as usual ones: 6 KB.
func large(p *corev1.Pod) {
	for i := range 40 {
		p.Spec.Containers[0].Env = append(p.Spec.Containers[0].Env, corev1.EnvVar{Name: fmt.Sprint("SETTING_", i), Value: strings.Repeat("x",
			120)})
	}
}

// populate creates pods on a node without kubelet, as fast as the apiserver takes them.
func (s *theater) populate(pods int) {
	next := make(chan int)
	var workers sync.WaitGroup
	for range 32 {
		workers.Go(func() {
			for i := range next {
				p := (&play{name: fmt.Sprintf("present-%06d", i), pod: large}).object()
				p.Spec.NodeName = "node-b"
				s.call(http.MethodPost, podsPath, p, nil)
			}
		})
	}
	for i := range pods {
		next <- i
	}
	close(next)
	workers.Wait()
}

// usage is what the program has used.
type usage struct {
	cpu       time.Duration
	rss, peak int // MiB
}

func (s *theater) usage() (u usage) {
	proc := fmt.Sprintf("/proc/%d/", s.trace.Process.Pid)
	stat, err := os.ReadFile(proc + "stat")
	s.check(err)
	if _, rest, found := strings.Cut(string(stat), ") "); found {
		fields := strings.Fields(rest)
		for _, f := range fields[11:13] { // utime, stime
			ticks, _ := strconv.Atoi(f)
			u.cpu += time.Duration(ticks) * 10 * time.Millisecond
		}
	}
	status, err := os.ReadFile(proc + "status")
	s.check(err)
	for line := range strings.Lines(string(status)) {
		name, value, _ := strings.Cut(line, ":")
		kib, _ := strconv.Atoi(strings.Fields(value + " 0")[0])
		switch name {
		case "VmRSS":
			u.rss = kib >> 10
		case "VmHWM":
			u.peak = kib >> 10
		}
	}
	return u
}

// lateness returns the 99th percentile of the time from the deadline to the verdict, of misses.
func (s *theater) lateness() (p99 time.Duration, misses int) {
	files, _ := filepath.Glob(filepath.Join(s.dir, "data", "????-??-??.db")) // the pattern is well-formed
	var all []time.Duration
	for _, name := range files {
		db, err := sql.Open("sqlite", "file:"+name+"?mode=ro")
		s.check(err)
		rows, err := db.QueryContext(s.ctx, `SELECT judged FROM acts WHERE act = 'creation' AND outcome = 'missed'`)
		if err != nil {
			s.t.Fatal(err)
		}
		for rows.Next() {
			var ms int64
			s.check(rows.Scan(&ms))
			all = append(all, time.Duration(ms)*time.Millisecond-promised)
		}
		s.check(rows.Err())
		_ = rows.Close()
		_ = db.Close()
	}
	if len(all) == 0 {
		return 0, 0
	}
	slices.Sort(all)
	return all[len(all)*99/100], len(all)
}

func (s *theater) disk() (bytes int64) {
	s.check(filepath.WalkDir(filepath.Join(s.dir, "data"), func(_ string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		bytes += info.Size()
		return err
	}))
	return bytes
}

// requests counts the requests of tracecenter by verb and resource after a time. Probes are no resources.
func (s *theater) requests(since time.Time) map[string]int {
	counts := map[string]int{}
	log, err := os.ReadFile(s.audit)
	s.check(err)
	for line := range bytes.Lines(log) {
		var l struct {
			Verb                     string
			ObjectRef                struct{ Resource string }
			RequestReceivedTimestamp time.Time
		}
		if json.Unmarshal(line, &l) == nil && l.RequestReceivedTimestamp.After(since) {
			counts[l.Verb+" "+l.ObjectRef.Resource]++
		}
	}
	return counts
}

// A cold start beside many pods, and then a steady rate of creations.
func TestRealAPIServerScale(t *testing.T) {
	need.Flag(t, *long && *withAPIServer, "-apiserver -long: creates 100,000 pods")
	s := prepare(t, newEtcd(t), scalePolicy, "--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000")
	s.kubeconfig = s.reader(`"pods","nodes","events"`)
	began := time.Now()
	s.populate(*present)
	t.Logf("the apiserver took %d pods in %s: %.0f each second", *present, time.Since(began).Round(time.Second),
		float64(*present)/time.Since(began).Seconds())
	began = time.Now()
	s.serve()
	ready := time.Now()
	cold := s.usage()
	s.sleep(30 * time.Second)
	rest := s.usage()
	stop := make(chan struct{})
	time.AfterFunc(*loadFor, func() { close(stop) })
	began2 := time.Now()
	created := s.crowd(*rate, stop)
	load := s.usage()
	took := time.Since(began2)
	s.sleep(promised + 10*time.Second)
	p99, misses := s.lateness()
	table := []struct {
		what  string
		value any
	}{
		{"pods at the cold start", *present},
		{"time to ready", ready.Sub(began).Round(100 * time.Millisecond)},
		{"peak memory of the cold start, MiB", cold.peak},
		{"memory at rest, MiB", rest.rss},
		{"creations", created},
		{"creations each second", float64(created) / took.Seconds()},
		{"processor time for a creation, ms", (load.cpu - rest.cpu).Seconds() * 1000 / float64(created)},
		{"share of a core", (load.cpu - rest.cpu).Seconds() / took.Seconds()},
		{"peak memory, MiB", load.peak},
		{"misses", misses},
		{"verdict of a miss after its deadline, p99", p99},
		{"bytes on disk, MB", float64(s.disk()) / 1e6},
		{"requests after the start", s.requests(ready)},
	}
	for _, row := range table {
		t.Logf("%-44s %v", row.what, row.value)
	}
	for request, n := range s.requests(ready) {
		if verb, resource, _ := strings.Cut(request, " "); verb != "watch" && resource != "" && resource != "endpointslices" {
			t.Errorf("%d of %s: only watches are expected", n, request)
		}
	}
	if load.peak > 500 || rest.rss > 300 {
		t.Errorf("too much memory: at rest %d MiB, peak %d MiB", rest.rss, load.peak)
	}
}

// crowded is an apiserver that serves pods in pages.
type crowded struct {
	pods     int
	encoding *protobuf.Serializer
}

func (c *crowded) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	query := r.URL.Query()
	if query.Get("watch") == "true" {
		w.WriteHeader(http.StatusOK)
		_ = http.NewResponseController(w).Flush()
		<-r.Context().Done()
		return
	}
	if !strings.HasSuffix(r.URL.Path, "/pods") {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	from, _ := strconv.Atoi(query.Get("continue"))
	limit, _ := strconv.Atoi(query.Get("limit"))
	list := &corev1.PodList{TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "PodList"}, ListMeta: metav1.ListMeta{ResourceVersion: "7"}}
	for i := from; i < min(from+limit, c.pods); i++ {
		p := corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("web-7d4b9c-%06d", i), Namespace: fmt.Sprint("team-", i%200),
			UID:               types.UID(fmt.Sprintf("%08d-d5c2-4d6f-8578-c4a8b20f980a", i)),
			CreationTimestamp: metav1.Unix(1_700_000_000, 0)}, Spec: corev1.PodSpec{NodeName: fmt.Sprint("node-", i%5000),
			Containers: []corev1.Container{{Name: "c", Image: "app:7"}}}}
		large(&p)
		list.Items = append(list.Items, p)
	}
	if from+limit < c.pods {
		list.Continue = strconv.Itoa(from + limit)
	}
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	_ = c.encoding.Encode(list, w)
}

// A cold start with 100,000 pods in pages, without the speed of a real apiserver.
func TestColdStart(t *testing.T) {
	need.Flag(t, *long, "-long: lists 100,000 pods")
	scheme := runtime.NewScheme()
	if err := corev1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(&crowded{*present, protobuf.NewSerializer(scheme, scheme)})
	defer server.CloseClientConnections()
	s := &theater{t: t, ctx: t.Context(), dir: t.TempDir(), on: loopback.Free(t)}
	s.build()
	s.kubeconfig = filepath.Join(s.dir, "kubeconfig")
	s.check(os.WriteFile(s.kubeconfig, fmt.Appendf(nil, `{"apiVersion":"v1","kind":"Config","clusters":[{"name":"c","cluster":{"server":%q}}],
"users":[{"name":"u","user":{"token":"t"}}],"contexts":[{"name":"x","context":{"cluster":"c","user":"u"}}],"current-context":"x"}`, server.URL), 0o600))
	began := time.Now()
	s.serve()
	took, u := time.Since(began), s.usage()
	t.Logf("%d pods: ready after %s, %s of processor time, peak memory %d MiB, then %d MiB", *present, took.Round(100*time.Millisecond),
		u.cpu, u.peak, u.rss)
	if u.peak > 500 {
		t.Errorf("peak memory %d MiB", u.peak)
	}
	_ = s.trace.Process.Kill()
}
