package main

import (
	"bytes"
	"context"
	"database/sql"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	_ "github.com/jackc/pgx/v5/stdlib" // the driver "pgx"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/report"
	"github.com/nodeagent/nodeagent/pkg/trace/store"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
	"github.com/nodeagent/nodeagent/test/loopback"
	"github.com/nodeagent/nodeagent/test/need"
	"github.com/nodeagent/nodeagent/test/trace/watchtest"
)

// postgres is a server of PostgreSQL on a socket, which runs as an unprivileged user.
type postgres struct {
	t        *testing.T
	bin, dir string
	as       *syscall.Credential
	cmd      *exec.Cmd
}

const nobody = 65534

func newPostgres(t *testing.T) *postgres {
	t.Helper()
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is well-formed
	need.Has(t, len(found) > 0, "Debian's package postgresql")
	dir, err := os.MkdirTemp("", "pg") // others may enter its parent, unlike that of t.TempDir
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	p := &postgres{t: t, bin: filepath.Dir(found[len(found)-1]), dir: dir}
	if os.Geteuid() == 0 {
		p.as = &syscall.Credential{Uid: nobody, Gid: nobody}
		if err := os.Chown(dir, nobody, nobody); err != nil {
			t.Fatal(err)
		}
	}
	initdb := p.command("initdb", "-D", dir+"/data", "-U", "trace", "-A", "trust", "--no-sync")
	if out, err := initdb.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	p.start()
	t.Cleanup(p.stop)
	return p
}

func (p *postgres) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(p.bin, program), args...)
	cmd.Dir, cmd.Env = p.dir, []string{"LC_ALL=C", "PATH=/usr/bin:/bin"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: p.as, Pdeathsig: syscall.SIGKILL}
	return cmd
}

func (p *postgres) start() {
	p.t.Helper()
	p.cmd = p.command("postgres", "-D", p.dir+"/data", "-k", p.dir, "-h", "", "-F")
	var log bytes.Buffer
	p.cmd.Stderr = &log
	if err := p.cmd.Start(); err != nil {
		p.t.Fatal(err)
	}
	wait(p.t, "PostgreSQL ready", func() bool { _, err := p.count("SELECT 1"); return err == nil })
}

// stop ends the server at once.
func (p *postgres) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGQUIT)
	_ = p.cmd.Wait()
}

func (p *postgres) url() string { return "postgres:///postgres?user=trace&host=" + p.dir }

func (p *postgres) count(query string) (n int, err error) {
	db, err := sql.Open("pgx", p.url())
	if err != nil {
		return 0, err
	}
	defer db.Close()
	return n, db.QueryRow(query).Scan(&n)
}

// replica is a tracecenter.
type replica struct {
	dir, on string
	stop    func()
}

func (p *postgres) replica(kubeconfig string) replica {
	dir, on := p.t.TempDir(), loopback.Free(p.t)
	ctx, cancel := context.WithCancel(p.t.Context())
	ended := make(chan int, 1)
	go func() {
		ended <- run(ctx, []string{"serve", "--kubeconfig", kubeconfig, "--dir", dir, "--store", p.url(), "--listen", on, "--promised", "1s"})
	}()
	wait(p.t, "replica ready", func() bool { code, _ := ask(p.t, dir, on, "/readyz", on); return code == http.StatusOK })
	return replica{dir, on, func() {
		cancel()
		if code := <-ended; code != exitFine {
			p.t.Errorf("ended with %d", code)
		}
	}}
}

// A writer whose session was ended by the server takes a new one at once, and its end is no error.
func TestRealPostgreSQLSessionEnds(t *testing.T) {
	p := newPostgres(t)
	kept, err := store.OpenPostgres(t.Context(), p.url(), 7)
	if err != nil {
		t.Fatal(err)
	}
	leads := func(how string) {
		t.Helper()
		wait(t, how, func() bool { // the server may not know yet that the old session has ended
			leads, fresh, err := kept.Lead(t.Context())
			if err != nil {
				t.Error(how, err)
			}
			return leads && fresh || err != nil
		})
	}
	leads("at first")
	if _, err := p.count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tracecenter'"); err != nil {
		t.Fatal(err)
	}
	leads("ended by the server")
	if _, err := p.count("SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity WHERE application_name = 'tracecenter'"); err != nil {
		t.Fatal(err)
	}
	if err := kept.Close(); err != nil {
		t.Error(err)
	}
}

// Two replicas share a database, which is away for a while. Each pod gets one verdict.
func TestRealPostgreSQL(t *testing.T) {
	p := newPostgres(t)
	center := watchtest.New(t)
	late := func(name string) {
		center.Pod("ADDED", &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default", UID: types.UID("uid-" + name),
			CreationTimestamp: metav1.Now()}, Spec: corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "a:1"}}}})
	}
	first := p.replica(center.Kubeconfig())
	missed := func(r replica, name string) {
		t.Helper()
		wait(t, name+" missed", func() bool {
			center.Beat()
			_, body := ask(t, r.dir, r.on, "/v1/pods/uid-"+name, r.on)
			return strings.Contains(body, `"SchedulerSlow"`)
		})
	}
	stored := func(want int) {
		t.Helper()
		wait(t, "verdicts stored", func() bool {
			center.Beat()
			n, err := p.count("SELECT count(*) FROM acts")
			return err == nil && n == want
		})
	}
	late("a")
	missed(first, "a")
	stored(1)
	if _, body := ask(t, first.dir, first.on, "/v1/slis?window=1h&namespace=default&nodes=,x", first.on); !strings.Contains(body, `"missed":1`) {
		t.Error(body) // the pod has no node
	}

	if _, body := ask(t, first.dir, first.on, "/v1/report", first.on); !strings.Contains(body, `"reason":"SchedulerSlow","class":"system","n":1`) {
		t.Error(body)
	}

	second := p.replica(center.Kubeconfig()) // it follows, and does not write
	late("b")
	missed(second, "b")
	stored(2)

	p.stop()
	late("c")
	wait(t, "not ready without its store", func() bool {
		center.Beat()
		code, body := ask(t, first.dir, first.on, "/readyz", first.on)
		return code == http.StatusServiceUnavailable && strings.Contains(body, "cannot store")
	})
	p.start()
	stored(3)
	wait(t, "ready again", func() bool {
		center.Beat()
		code, _ := ask(t, first.dir, first.on, "/readyz", first.on)
		return code == http.StatusOK
	})

	first.stop()
	late("d")
	stored(4)
	late("e")
	missed(second, "e")
	stored(5)
	second.stop()
	if n, err := p.count("SELECT count(DISTINCT uid) FROM acts"); err != nil || n != 5 {
		t.Errorf("%d pods, %v", n, err)
	}
}

// The sums of hours in PostgreSQL outlive the acts, and a late verdict changes them. A table of an earlier release gets
// its new column.
func TestRealPostgreSQLKeepsHours(t *testing.T) {
	p := newPostgres(t)
	ctx, now := t.Context(), time.Now()
	open := func() *store.Store {
		t.Helper()
		kept, err := store.OpenPostgres(ctx, p.url(), 8)
		if err != nil {
			t.Fatal(err)
		}
		return kept
	}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(open().Close())
	for _, query := range []string{"ALTER TABLE acts DROP COLUMN build", "DELETE FROM meta WHERE name = 'schema'"} { // an earlier release
		if _, err := p.count(query); err == nil || !strings.Contains(err.Error(), "no rows") {
			t.Fatal(err)
		}
	}
	kept := open()
	defer kept.Close()
	build := record.Build{Pool: "a", Kubelet: "v1"}
	judged := func(uid string, at time.Time) follow.Batch {
		a := follow.Act{Timeline: record.Timeline{Act: record.Creation, UID: uid, Build: build.ID()}, JudgedAt: at, Verdict: verdict.Verdict{Outcome: verdict.Delivered}}
		a.Timeline.Set(record.Created, record.Mark{Source: record.Own, Arrival: at.Add(-time.Second)})
		return follow.Batch{Judged: []follow.Act{a}}
	}
	count := func() {
		t.Helper()
		for range 30 {
			must(kept.CountHour(ctx, now, map[int64]record.Build{build.ID(): build}))
		}
	}
	must(kept.CountHour(ctx, now, nil)) // another replica writes
	_, _, err := kept.Lead(ctx)
	must(err)
	must(kept.Save(ctx, judged("a", now.Add(-24*time.Hour))))
	count()
	must(kept.Save(ctx, judged("late", now.Add(-23*time.Hour))))
	count()
	must(kept.KeepWeek(ctx, "2026-W01", report.Report{Week: "2026-W01"}))
	must(kept.Expire(ctx, now.AddDate(0, 1, 0)))
	sums, err := kept.Sums(ctx, now.Add(-48*time.Hour).Truncate(time.Hour), now, "")
	if err != nil || len(sums) != 1 || sums[0].N != 2 {
		t.Errorf("%+v, %v", sums, err)
	}
	cells, err := kept.Cells(ctx, now.Add(-48*time.Hour), now)
	if err != nil || len(cells) != 2 || cells[0].Build != build || cells[0].Times.N() != 1 || !cells[0].Cached {
		t.Errorf("%+v, %v", cells, err)
	}
	if week, err := kept.Week(ctx, "2026-W01"); err != nil || week == nil || week.Week != "2026-W01" {
		t.Errorf("%+v, %v", week, err)
	}
	if n, err := p.count("SELECT count(*) FROM acts"); n != 0 || err != nil {
		t.Errorf("%d acts, %v", n, err)
	}
}
