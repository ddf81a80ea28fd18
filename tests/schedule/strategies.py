"""Random schedules, single curves and compositions, for the property tests of schedules."""

from hypothesis import strategies as st

from stoker import schedule
from stoker.schedule import Schedule

rates = st.floats(-10.0, 10.0)
lengths = st.integers(1, 60)
gammas = st.floats(0.1, 1.0)


@st.composite
def with_warmup(draw: st.DrawFn) -> Schedule:
    updates, peak, end = draw(lengths), draw(rates), draw(rates)
    warmup = draw(st.integers(0, updates))
    decay = draw(st.integers(0, updates - warmup))
    return draw(
        st.sampled_from(
            [
                schedule.cosine(peak, updates=updates, warmup=warmup, end=end),
                schedule.cosine(peak, updates=updates + 8, warmup=warmup, end=end, restarts=2, growth=1.3),
                schedule.warmup_stable_decay(peak, updates=updates, warmup=warmup, decay=decay, end=end, shape="sqrt"),
                schedule.inverse_sqrt(peak, warmup=warmup),
                schedule.noam(updates, warmup=warmup + 1, scale=peak),
            ]
        )
    )


simple = st.one_of(
    st.builds(schedule.constant, rates),
    st.builds(schedule.linear, rates, rates, lengths),
    st.builds(schedule.exponential, rates, gamma=gammas),
    st.builds(schedule.step, rates, every=lengths, gamma=gammas),
    st.builds(schedule.multistep, rates, milestones=st.sets(lengths, max_size=4).map(sorted), gamma=gammas),
    st.builds(schedule.polynomial, rates, updates=lengths, end=rates, power=st.floats(0.3, 3.0)),
    st.builds(schedule.one_cycle, rates, updates=st.integers(2, 60), rise=st.floats(0, 0.9), end=st.none() | rates),
    with_warmup(),
)


def combined(inner: st.SearchStrategy[Schedule]) -> st.SearchStrategy[Schedule]:
    return st.one_of(
        st.builds(lambda a, b, at: a.then(b, at=at), inner, inner | rates, st.integers(0, 60)),
        st.builds(lambda a, b: a + b, inner, inner | rates),
        st.builds(lambda a, b: a - b, inner | rates, inner),
        st.builds(lambda a, b: a * b, inner | rates, inner),
        st.builds(lambda a, b: a / b, inner, st.floats(0.1, 10)),
        st.builds(lambda a: -a, inner),
        st.builds(lambda a, n: schedule.warmup(a, updates=n), inner, st.integers(0, 20)),
    )


any_schedule = st.recursive(simple, combined, max_leaves=5)
