package store

import (
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/trace/follow"
	"github.com/nodeagent/nodeagent/pkg/trace/record"
	"github.com/nodeagent/nodeagent/pkg/trace/verdict"
)

const benchBatch = 5000

// lived returns the creations of a batch, of which one in 200 was missed, with the marks of a usual pod.
func lived(r *rand.Rand, day time.Time) (acts []follow.Act) {
	for i := range benchBatch {
		outcome := verdict.Delivered
		if i%200 == 0 {
			outcome = verdict.Missed
		}
		a := act(fmt.Sprintf("%08x-0000-4000-8000-%012x", r.Uint32(), r.Uint64()>>16), outcome, day.Add(time.Duration(r.IntN(86_000))*time.Second))
		t := &a.Timeline
		t.Namespace, t.Name, t.Node = fmt.Sprintf("ns-%d", r.IntN(200)), fmt.Sprintf("web-7d4b9c-%x", r.Uint32()), fmt.Sprintf("node-%d", r.IntN(5000))
		t.OwnerKind, t.OwnerName, t.CPU, t.Bytes = "Deployment", fmt.Sprintf("d-%d", r.IntN(2000)), 100, 1<<28
		t.Containers = []record.Container{{Name: "app", Image: "registry.example.com/team/app:7"}, {Name: "proxy", Image: "registry.example.com/proxy:3"}}
		begin := a.JudgedAt.Add(-20 * time.Second)
		for j, p := range []record.Point{record.Created, record.Scheduled, record.KubeletSaw, record.SandboxReady, record.Initialized, record.Running, record.ContainersReady, record.Ready} {
			delete(t.Marks, p)
			t.Set(p, record.Mark{Time: begin, Source: record.Own, Arrival: begin.Add(time.Duration(j*r.IntN(2000)) * time.Millisecond)})
		}
		acts = append(acts, a)
	}
	return acts
}

// BenchmarkSave stores verdicts. Beside them stands SQLite alone with the same rows in the same tables.
func BenchmarkSave(b *testing.B) {
	r := rand.New(rand.NewPCG(1, 1))
	batches := make([][]follow.Act, 10) // of one day
	for i := range batches {
		batches[i] = lived(r, now)
	}
	acts := len(batches) * benchBatch
	b.Run("ours", func(b *testing.B) {
		for b.Loop() {
			dir := b.TempDir()
			s, err := Open(b.Context(), dir, 8)
			if err != nil {
				b.Fatal(err)
			}
			for _, batch := range batches {
				if err := s.Save(b.Context(), follow.Batch{Judged: batch}); err != nil {
					b.Fatal(err)
				}
			}
			if err := s.Close(); err != nil {
				b.Fatal(err)
			}
			b.ReportMetric(float64(size(b, dir))/float64(acts), "bytes/act")
		}
		b.ReportMetric(float64(acts*b.N)/b.Elapsed().Seconds(), "acts/s")
	})
	b.Run("sqlite", func(b *testing.B) {
		rows := 0
		for b.Loop() {
			db, err := database(b.Context(), filepath.Join(b.TempDir(), "a.db"), daySchema)
			if err != nil {
				b.Fatal(err)
			}
			for _, batch := range batches {
				if err := bare(b, db, batch); err != nil {
					b.Fatal(err)
				}
				rows += len(batch)
			}
			if err := db.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(rows)/b.Elapsed().Seconds(), "acts/s")
	})
}

func bare(b *testing.B, db *sql.DB, batch []follow.Act) error {
	tx, err := db.BeginTx(b.Context(), nil)
	if err != nil {
		return err
	}
	insert, err := tx.PrepareContext(b.Context(), `INSERT INTO acts VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)`)
	if err != nil {
		return errors.Join(err, tx.Rollback())
	}
	for i := range batch {
		a, t := &batch[i], &batch[i].Timeline
		if _, err := insert.ExecContext(b.Context(), a.Key().String(), t.UID, t.Act, t.Namespace, t.Name, t.Node, "Deployment/"+t.OwnerName, a.Verdict.Outcome, "",
			"", "", "", a.JudgedAt.UnixMilli(), 9000, 0, "c04=900 c06=500 c10=4000 c11=20000 c13=900 c15=9000", 0); err != nil {
			return errors.Join(err, tx.Rollback())
		}
	}
	return errors.Join(insert.Close(), tx.Commit())
}

func size(b *testing.B, dir string) (bytes int64) {
	files, err := filepath.Glob(filepath.Join(dir, "*"))
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range files {
		info, err := os.Stat(name)
		if err != nil {
			b.Fatal(err)
		}
		bytes += info.Size()
	}
	return bytes
}
