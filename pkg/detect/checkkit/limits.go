package checkkit

// MaxNameservers is how many servers a resolver of libc uses (MAXNS in resolv.conf(5)); kubelet leaves out the others.
const MaxNameservers = 3

// MaxReported bounds what kubelet or the runtime say, in bytes, in a message.
const MaxReported = 300
