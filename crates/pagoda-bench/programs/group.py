# A table in memory: a group by a key of many values, the greatest groups, and a join.
import duckdb

db = duckdb.connect(":memory:", config={"threads": 2, "memory_limit": "8GB"})
db.execute(
    "create table t as select (i * 2654435761) % 7000003 as k, (i * 40503) % 1000003 as v, (i * 7919) % 10007 as w "
    "from range(3000000) r(i)"
)
db.execute("create table g as select k, count(*) c, sum(v) s, min(v) a, max(v) b, sum(w) w from t group by k")
for query in [
    "select count(*), sum(c), sum(s), sum(a), sum(b), bit_xor(hash(k, c, s, a, b, w)) from g",
    "select * from g order by s desc, k limit 5",
    "select count(*), bit_xor(hash(a.k, b.v)) from t a join (select distinct k, v from t where v < 20000) b on a.k = b.k",
]:
    print(db.execute(query).fetchall())
