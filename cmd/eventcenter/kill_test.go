package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/nodeagent/nodeagent/pkg/event"
	"github.com/nodeagent/nodeagent/pkg/eventcenter/api"
)

// load sends batches from several nodes and records the acknowledged events.
type load struct {
	mu    sync.Mutex // guards acked
	acked map[string]bool
	next  []uint64 // of each node: the last acknowledged sequence

	over  atomic.Bool // stop sending
	names string      // prefix of the nodes' names
	pause time.Duration
}

// newLoad returns a load of this many nodes, which sends as fast as the center answers.
func newLoad(nodes int) *load {
	return &load{acked: map[string]bool{}, next: make([]uint64, nodes), names: "node-"}
}

// at limits the events per second.
func (l *load) at(rate int) *load {
	l.pause = time.Second * time.Duration(10*len(l.next)) / time.Duration(rate)
	return l
}

// send sends until the center stops answering. The next call sends unacknowledged events again.
func (l *load) send(p *process) {
	var senders sync.WaitGroup
	for i := range l.next {
		senders.Go(func() {
			for !l.over.Load() {
				time.Sleep(l.pause)
				node, events := fmt.Sprint(l.names, i), make([]event.Event, 10)
				for n := range events {
					events[n] = raised(node, l.next[i]+uint64(n)+1)
				}
				status, _, err := p.do(http.MethodPost, "/v1/events", event.BatchMediaType, batch(events...))
				if err != nil || status == http.StatusTooManyRequests {
					return
				}
				if status != http.StatusOK {
					continue
				}
				l.mu.Lock()
				for _, e := range events {
					l.acked[node+"/"+e.ID()] = true
				}
				l.mu.Unlock()
				l.next[i] += uint64(len(events))
			}
		})
	}
	senders.Wait()
}

// count returns the number of acknowledged events.
func (l *load) count() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.acked)
}

// wait returns when this many more events are acknowledged.
func (l *load) wait(t *testing.T, more int) {
	t.Helper()
	begun := l.count()
	await(t, func() error {
		return unless(l.count() >= begun+more, "the center acknowledges only %d events", l.count()-begun)
	})
}

// begin sends in the background, also after a request has failed, until end is called.
func (l *load) begin(p *process) (end func()) {
	l.over.Store(false)
	var running sync.WaitGroup
	running.Go(func() {
		for !l.over.Load() {
			l.send(p)
		}
	})
	return func() {
		l.over.Store(true)
		running.Wait()
	}
}

// A center killed at any moment has every acknowledged event exactly once, in strictly increasing offsets. A subscriber
// that reconnects with the last ID sees each offset once. A webhook gets every acknowledged event at least once, a node's
// events in order, although it refuses some. The long form kills the center every 2 s, at 1,000 events per second.
func TestKilled(t *testing.T) {
	rounds, end, l := 8, time.Now(), newLoad(8)
	if testing.Short() {
		rounds = 3
	}
	life := func() time.Duration { return rand.N(300 * time.Millisecond) }
	if *long {
		end, l = end.Add(*soak), newLoad(20).at(1000)
		life = func() time.Duration { return 1500*time.Millisecond + rand.N(time.Second) }
	}
	dir := t.TempDir()
	u := newUsers(t, l, true)
	u.hook.refuses(func(string) bool { return rand.IntN(50) == 0 })
	file := u.hook.settings("subscriptions: [{name: all, url: '" + u.hook.url + "/hook'}]\n")
	kills := 0
	for ; kills < rounds || time.Now().Before(end); kills++ {
		p := start(t, dir, "--subscriptions", file)
		u.during(p, func() {
			l.wait(t, 200)
			time.Sleep(life())
			p.stop(syscall.SIGKILL)
		})
	}
	u.hook.Answers(nil)
	p := start(t, dir, "--subscriptions", file)
	stored := readAll(t, p)
	l.once(t, stored)
	u.haveAll(p, len(stored))
	p.stop(syscall.SIGTERM)
	expect(t, exitFine, "", "verify", "--dir", dir)
	t.Logf("%d acknowledged, %d stored, %d delivered, %d kills", len(l.acked), len(stored), u.hook.count(), kills)
}

// users are senders, a subscriber to the stream, and a webhook.
type users struct {
	t    *testing.T
	load *load
	hook *webhook
	last string         // where the subscriber reconnects
	seen map[string]int // by it, by offset
}

func newUsers(t *testing.T, l *load, ordered bool) *users {
	u := &users{t: t, load: l, hook: newWebhook(t, ordered), last: "0", seen: map[string]int{}}
	u.hook.Killed = true
	return u
}

// during sends to a center and follows its stream, until the center is stopped by do.
func (u *users) during(p *process, do func()) {
	end := u.load.begin(p)
	var following sync.WaitGroup
	following.Go(func() { u.follow(p, 0) })
	do()
	end()
	following.Wait()
}

// haveAll demands that the subscriber has seen each offset once, and the webhook all acknowledged events.
func (u *users) haveAll(p *process, newest int) {
	u.t.Helper()
	u.follow(p, newest)
	for offset := 1; offset <= newest; offset++ {
		if n := u.seen[strconv.Itoa(offset)]; n != 1 {
			u.t.Fatalf("the subscriber saw offset %d %d times", offset, n)
		}
	}
	u.hook.awaitAll(u.load)
}

// once reports acknowledged events that are not stored exactly once.
func (l *load) once(t *testing.T, stored map[string]int) {
	t.Helper()
	for id := range l.acked {
		if stored[id] != 1 {
			t.Errorf("%s is there %d times", id, stored[id])
		}
	}
}

// readAll returns how often each event is in the journal, as "node/id".
func readAll(t *testing.T, p *process) map[string]int {
	t.Helper()
	stored, last := map[string]int{}, uint64(0)
	for {
		var answer api.List
		must(t, p.get(fmt.Sprint("/v1/events?limit=1000&after=", last), &answer))
		if len(answer.Gaps) > 0 {
			t.Fatal(answer.Gaps)
		}
		for _, i := range answer.Events {
			var e struct{ ID, Partitionkey string }
			if i.Offset != last+1 || json.Unmarshal(i.Event, &e) != nil {
				t.Fatalf("offset %d after %d", i.Offset, last)
			}
			last = i.Offset
			stored[e.Partitionkey+"/"+e.ID]++
		}
		if answer.Next == answer.Newest {
			return stored
		}
	}
}

// follow reads the stream until it ends, or until this many offsets were seen.
func (u *users) follow(p *process, enough int) {
	request, err := http.NewRequestWithContext(u.t.Context(), http.MethodGet, p.url+"/v1/events", nil)
	if err != nil {
		u.t.Error(err)
		return
	}
	request.Header.Set("Authorization", "Bearer "+p.token())
	request.Header.Set("Accept", "text/event-stream")
	request.Header.Set("Last-Event-ID", u.last)
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return // already killed
	}
	defer response.Body.Close()
	lines, id, kind, data := bufio.NewScanner(response.Body), "", "", ""
	for (enough == 0 || len(u.seen) < enough) && lines.Scan() {
		name, value, _ := strings.Cut(lines.Text(), ": ")
		switch name {
		case "id":
			id = value
		case "event":
			kind = value
		case "data":
			data = value
		case "": // only now the message is complete
			if data != "" && kind == "" {
				u.seen[id]++
			} else if data != "" && kind != "bookmark" {
				u.t.Errorf("%s: %s", kind, data)
			}
			u.last, kind, data = id, "", ""
		}
	}
}
