//go:build race

package release

// someHostileNodes is lower than without the race detector, which makes each node four times as expensive.
const someHostileNodes = 300
