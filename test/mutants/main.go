// Command mutants removes the guards of nodeagent one at a time and runs the tests that should notice. A guard without
// a test that fails when it is removed may get lost. See the tables beside it, *.yaml, and `make mutants`.
//
//	go run ./test/mutants [-run REGEXP] [-list] [FOLDER]
//
// The tree does not change: the compiler gets the changed file instead of the real one (go test -overlay). Exit status:
// 0 every change was noticed, 1 one was not, or an entry is wrong.
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"
)

func main() {
	wanted := flag.String("run", "", "only guards whose description or file matches this regular expression")
	list := flag.Bool("list", false, "list the guards, run nothing")
	limit := flag.Duration("limit", 3*time.Minute, "for the tests of one guard, without building them")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, *wanted, *list, *limit); err != nil {
		fmt.Fprintln(os.Stderr, "mutants:", err)
		stop()
		os.Exit(1)
	}
}

func run(ctx context.Context, wanted string, list bool, limit time.Duration) error {
	match, err := regexp.Compile(wanted)
	if err != nil {
		return err
	}
	all, err := load("test/mutants")
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	bench := &bench{dir: dir, limit: limit, built: map[string]func() (string, error){},
		sound: map[string]func() (string, error){}}
	var lines sync.Mutex // of the output and the counts
	survivors, count := 0, 0
	tries, ctx := errgroup.WithContext(ctx)
	tries.SetLimit(runtime.NumCPU())
	for _, m := range all {
		if !match.MatchString(m.Guard) && !match.MatchString(m.File) {
			continue
		}
		count++
		if list {
			fmt.Printf("%-40s %s\n", m.File, m.Guard)
			continue
		}
		tries.Go(func() error {
			started := time.Now()
			result, err := bench.try(ctx, m)
			if ctx.Err() != nil {
				return ctx.Err()
			}
			lines.Lock()
			defer lines.Unlock()
			if result != noticed {
				survivors++
			}
			fmt.Printf("%-8s %5.1fs  %s: %s\n", result, time.Since(started).Seconds(), m.File, strings.TrimSpace(m.Guard))
			if err != nil {
				fmt.Fprintln(os.Stderr, err)
			}
			return nil
		})
	}
	if err := tries.Wait(); err != nil {
		return err
	}
	fmt.Printf("%d guards, %d not held\n", count, survivors)
	if survivors > 0 {
		return fmt.Errorf("%d of %d guards are not held by their tests", survivors, count)
	}
	return nil
}
