package fuse

// Join lets conversions of different arrays run together: casts of the weights of all layers before the first layer, and casts of their
// gradients after the last. The calls have nothing in common, but one launch costs less than many. A call runs earlier only if its input is
// ready by then, and later only if nobody needs its output before. All together may raise the peak of memory by l.Slack bytes.
func (g *Graph) Join(l Limits) {
	j := &joining{g: g, l: l, place: make([]int, len(g.Calls)), until: make([]int, len(g.Calls))}
	for i := range g.Calls {
		j.place[i] = i
	}
	for k := range g.Groups {
		for _, i := range g.Groups[k].Calls {
			j.place[i] = g.Groups[k].At
		}
	}
	j.weigh()
	for _, calls := range j.candidates() {
		for len(calls) > 0 {
			var s joint
			if s, calls = j.next(calls); len(s.calls) < 2 {
				continue
			}
			set := Set{Calls: s.calls, Join: true, At: s.at}
			for k, i := range s.calls {
				set.Ins, set.Outs = append(set.Ins, Ref{i, 0}), append(set.Outs, Ref{i, 0})
				set.From = append(set.From, []Source{{Member: -1, Index: k}})
			}
			g.Groups = append(g.Groups, set)
		}
	}
}

// joining is the state of one run of Join.
type joining struct {
	g *Graph
	l Limits
	// place is the position where each call runs; ready and until are the first and the last position where a call that may be joined can
	// run.
	place, ready, until []int
	usage
	// ends is the last position where the input of a call that may be joined is needed, and size the number of bytes of that input if it is
	// memory of the segment.
	ends, size []int
}

// joint is a set under construction; it runs at position at.
type joint struct {
	calls []int
	at    int
}

// weigh computes when memory is in use, and when calls can run.
func (j *joining) weigh() {
	g, n := j.g, len(j.g.Calls)
	var made []span
	j.usage, made = g.memory(j.place, func(yield func(s *Set) bool) {
		for k := range g.Groups {
			if !yield(&g.Groups[k]) {
				return
			}
		}
	})
	j.ready, j.ends, j.size = make([]int, n), make([]int, n), make([]int, n)
	writer, joined := map[int]int{}, map[int][]int{} // by storage: its last writer, and the conversions that have read or made it
	for i := range g.Calls {
		c := &g.Calls[i]
		j.until[i] = n - 1
		c.uses(func(s int, write bool) {
			for _, k := range joined[s] {
				if write || g.Calls[k].Outs[0].Storage == s {
					j.until[k] = min(j.until[k], i-1)
				}
			}
		})
		if c.Converts {
			s := c.Ins[0].Storage
			if w, ok := writer[s]; ok {
				j.ready[i] = j.place[w] + 1
				if g.Calls[w].Converts { // the writer may itself be moved later
					j.ready[i] = i
				}
			}
			if j.ends[i] = n; made[s].made {
				j.ends[i], j.size[i] = made[s].last, made[s].bytes
			}
			joined[s], joined[c.Outs[0].Storage] = append(joined[s], i), append(joined[c.Outs[0].Storage], i)
		}
		c.uses(func(s int, write bool) {
			if write {
				writer[s] = i
			}
		})
	}
}

// candidates returns the conversions that are in no group, by stream and types.
func (j *joining) candidates() [][]int {
	type key struct{ lane, from, to int }
	number, of := map[key]int{}, j.g.groupOf()
	var all [][]int
	for i := range j.g.Calls {
		c := &j.g.Calls[i]
		if !c.Converts || c.Left || c.Effect || c.Checks || of[i] != nil || c.Ins[0].Bytes()+c.Outs[0].Bytes() > j.l.Joined {
			continue
		}
		k := key{c.Lane, int(c.Ins[0].DType), int(c.Outs[0].DType)}
		n, ok := number[k]
		if !ok {
			n = len(all)
			number[k], all = n, append(all, nil)
		}
		all[n] = append(all[n], i)
	}
	return all
}

// next takes a set from calls and returns the rest. The set runs at the position of the last call that precedes the earliest deadline,
// which makes as few sets as possible, or earlier if that many fill a launch: then they can run beside what comes until the deadline.
func (j *joining) next(calls []int) (s joint, rest []int) {
	end := len(j.g.Calls)
	for _, i := range calls {
		end = min(end, j.until[i])
	}
	for n, i := range calls {
		if i <= end && n < j.l.Together {
			s.at = i
		}
	}
	for _, i := range calls {
		if j.ready[i] <= s.at && (i == s.at || j.move(i, s.at)) {
			s.calls = append(s.calls, i)
		} else {
			rest = append(rest, i)
		}
	}
	return s, rest
}

// move lets call i run at position at, unless that raises the peak of memory by more than the slack.
func (j *joining) move(i, at int) bool {
	out, from, to := j.g.Calls[i].Outs[0].Bytes(), at, i
	if i < at { // its output is made later, and its input is kept longer
		from, to, out = i, at, -out
	}
	more := make([]int, to-from+1)
	for p := range more[:to-from] {
		more[p] = out
	}
	if i < at {
		for p := max(i, j.ends[i]) + 1; p <= at; p++ {
			more[p-i] += j.size[i]
		}
	}
	for p, b := range more {
		if b > 0 && j.held[from+p]+b > j.peak+j.l.Slack {
			return false
		}
	}
	for p, b := range more {
		j.held[from+p] += b
	}
	return true
}
