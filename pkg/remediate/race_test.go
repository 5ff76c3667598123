//go:build race

package remediate

// someHostileNodes are fewer than without the race detector, which makes each four times as dear.
const someHostileNodes = 300
