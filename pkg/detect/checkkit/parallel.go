package checkkit

import (
	"sync"
)

// Parallel calls do for each of n numbers, at most limit at a time, and returns when all are done.
func Parallel(limit, n int, do func(i int)) {
	slots := make(chan struct{}, limit)
	var all sync.WaitGroup
	for i := range n {
		slots <- struct{}{}
		all.Go(func() {
			defer func() { <-slots }()
			do(i)
		})
	}
	all.Wait()
}
